"""The parts that all our servers share: the API, the proxy of IPUJobs, the webhooks, the guard of metrics, the agent.

Here: ``server`` (accepts connections and bounds HTTP), ``limits`` (what clients share), ``tls`` (contexts that reload),
``problems`` (errors as responses), ``bodies`` (reading a body).

Not here: routes, rights and the numbers of the limits, which each server has; clients (``client``).

Start with ``server.BoundedServer``.
"""
