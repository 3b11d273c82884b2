"""Everything seen over HTTP: the shapes of requests and responses, their JSON, and the table of error codes.

Plain dataclasses of the standard library, because the command line and the hooks must start fast; ``api`` alone wraps
them in pydantic. JSON is camelCase, times are RFC 3339 UTC, sizes and durations are numbers in base units.

Not here: routes and checks (``api``), requests (``client``), tables for people (``cli``).
"""
