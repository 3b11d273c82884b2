"""Everything we say to Kubernetes, 1.20 and later: IPUJobs, their operator, and the proxy to the controllers.

``kube`` is the Kubernetes API, ``ipujob`` an IPUJob as a value, ``proxy_api`` what callers of the proxy need. On them
stand four programs that do not import each other: ``operator``, ``proxy`` (between the operator and the controllers),
``launcher`` (in the job's own Pod) and ``engine`` (creates IPUJobs for runs).

Not here: placement and scheduling (``core``), vendors' hardware (``drivers``), ownership of partitions
(``controller``): the operator claims partitions over HTTP like every other client. Start reading at ``operator.plan``.
"""
