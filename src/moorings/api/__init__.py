"""The HTTP API of the controller: routes, access keys, checks, errors, the event stream.

Here: ``application`` (``make_application(controller)`` gives the ASGI app), ``routes/`` (one file a resource: start
reading at ``routes/claims.py``), ``routing`` (finds the operation of a request), ``request_context`` (one request while
it is served), ``route`` (an operation of ``wire.operations`` with the function that serves it), ``parameters`` (values
of the query), ``pagination`` (lists in pages), ``bodies`` (the wire shapes with pydantic's strict checks),
``parse_requests`` and ``render`` (wire to core, and views to wire), ``limits``, ``streams``, ``openapi`` (the committed
document), ``server`` (the values of its bounds).

Not here: the server itself and errors as problem+json (``net``), decisions, and permissions beyond "is this key valid"
(``controller``), the shapes themselves (``wire``).
FastAPI assembles the OpenAPI document and carries no request (ADR 0014).
"""
