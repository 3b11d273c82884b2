"""The HTTP API of the controller: routes, access keys, checks, errors, the event stream.

Here: ``application`` (``make_application(controller)`` gives the ASGI app), ``routes/`` (one file a resource: start
reading at ``routes/claims.py``), ``routing`` (which of them serves a request), ``calls`` (one request while it is
served), ``operations`` (what a route promises), ``parameters`` (values of the query), ``pages`` (lists in pieces),
``bodies`` (the wire shapes under pydantic's strict eye), ``demands`` and ``render`` (wire to core, and views to
wire), ``problems`` (errors as problem+json), ``security``, ``limits``, ``events_stream``, ``openapi`` (the committed
document), ``server`` (uvicorn).

Not here: decisions and permissions beyond "is this key valid" (``controller``), the shapes themselves (``wire``),
pages for people (``web``). FastAPI assembles the OpenAPI document and carries no request: its handling of bodies,
dependencies and response models costs three times what the rest of a request does, and knows neither our error codes
nor a limit. What stands in its place is ``calls.Call``, the same for every route.
"""
