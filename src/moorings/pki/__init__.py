"""Certificate authorities: those of ``moor pki``, and those of webhooks and proxy on Kubernetes.

``authority`` makes and reads certificates; ``folder`` and ``files`` keep those of ``moor pki``. Not here: TLS contexts
(``api.tls``, ``client.tls``), and the rotation of Secrets (``kubernetes.certificates``). Start with ``authority``.

``authority`` and ``folder`` load ``cryptography``, which would triple the time ``moor`` takes to start: programs that
start often import them when needed.
"""
