"""The typed client of the HTTP API: what the command line, the hooks and users' programs speak to a controller with.

Here: ``requests`` builds every request and reads every answer without IO; ``transport`` sends them over
``http.client``; ``sse`` reads event streams; ``client`` joins them into one method a call. Start at ``client.py``.

Not here: where the server and the access key come from (``cli.configuration``), tables for people (``cli``), any
dependency: this must start in a few hundredths of a second.
"""
