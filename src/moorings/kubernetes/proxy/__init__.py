"""The proxy: one address in front of one or several controllers, for the operator, for launchers and for people.

It stores nothing of its own: the controllers know each claim by its owner; the ConfigMap that it writes is a copy.
``kubernetes.proxy_api.shapes`` are the bodies of its HTTP API.
"""
