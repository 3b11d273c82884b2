"""The proxy: one address in front of one or several controllers, for the operator, for launchers and for people.

It keeps nothing of its own: who holds what stands in the controllers, by the claims' owners; the ConfigMap it writes is
a view. ``shapes`` is what is said over HTTP.
"""
