"""Everything we say to Kubernetes, 1.20 and later: IPUJobs, who sees to them, and who asks the controllers for them.

Deciding, and pure: ``ipujob`` (an IPUJob as a value), ``crd`` (its definition for the API server), ``plan`` (what has
to be done about one job), ``objects`` (the Pods and what stands beside them), ``status``. Doing: ``kube`` (the API
server), ``informer``, ``workqueue``, ``election``, ``operator``, ``webhooks``, ``certificates``, ``launcher`` (in the
job's own Pod), ``proxy/`` (between the operator and the controllers), ``engine/`` (we make IPUJobs).

Not here: what fits where and who is next (``core``), vendors' hardware (``drivers``), who owns a partition
(``controller``): the operator asks for partitions over HTTP like everybody. Start reading at ``plan``.
"""
