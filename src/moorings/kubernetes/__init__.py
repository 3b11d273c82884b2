"""Everything we say to Kubernetes, 1.20 and later: IPUJobs, their operator, and the proxy to the controllers.

Pure decisions: ``ipujob`` (an IPUJob as a value), ``crd`` (its definition for the API server), ``plan`` (the actions
for one job), ``objects`` (the Pods and the objects beside them), ``status``. IO: ``kube`` (the API server),
``informer``, ``workqueue``, ``election``, ``operator``, ``webhooks``, ``certificates``, ``launcher`` (in the job's own
Pod), ``proxy/`` (between the operator and the controllers), ``engine/`` (we make IPUJobs).

Not here: placement and scheduling (``core``), vendors' hardware (``drivers``), ownership of partitions
(``controller``): the operator claims partitions over HTTP like every other client. Start reading at ``plan``.
"""
