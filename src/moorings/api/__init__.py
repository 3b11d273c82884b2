"""The HTTP API of the controller: routes, access keys, checks, errors, the event stream.

Here: ``application`` (``make_application(controller)`` gives the ASGI app), ``routes/`` (one file a resource: start
reading at ``routes/claims.py``), ``routing`` (finds the operation of a request), ``calls`` (one request while it is
served), ``operations`` (the declaration of a route), ``parameters`` (values of the query), ``pages`` (lists in pages),
``bodies`` (the wire shapes with pydantic's strict checks), ``demands`` and ``render`` (wire to core, and views to
wire), ``problems`` (errors as problem+json), ``security``, ``limits``, ``events_stream``, ``openapi`` (the committed
document), ``server`` (uvicorn).

Not here: decisions, and permissions beyond "is this key valid" (``controller``), the shapes themselves (``wire``).
FastAPI assembles the OpenAPI document and carries no request: its handling of bodies, dependencies and response models
costs three times what the rest of a request does, and has neither our error codes nor limits. ``calls.RequestContext``
replaces it, the same for every route.
"""
