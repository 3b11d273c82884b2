"""A V-IPU controller of IPU pods, driven through its own ``vipu`` command.

``commands`` builds every call and parses every answer (pure), ``cli`` runs the command, ``intents`` records our
requests (V-IPU has no place for our mark), ``listing`` translates the vendor's listing into our words (pure),
``reader`` lists, ``running_commands`` runs what takes long, ``driver`` joins them behind the port, ``settings`` is
``[pool.vipu]``. Start reading at ``driver``.

It was written from public texts and tested against a stand-in (``testing.fake_vipu``), never on real hardware.
Refused: the vendor's gRPC interface, because its description is not public; the REST proxy of its Kubernetes operator,
because it only counts.
"""
