"""The Kubernetes API as we use it: client, informer, work queue, election, Events, serving certificates, token reviews.

Nothing here knows an IPUJob. ``api`` and this package import the standard library only, for the launcher's sake.
Start reading at ``api``, then ``informer``.
"""
