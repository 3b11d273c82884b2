"""A V-IPU controller of IPU pods, driven through its own ``vipu`` command.

``commands`` builds every call and reads every answer (pure), ``tool`` runs the command, ``orders`` remembers what we
ordered (V-IPU has no place for our mark), ``sight`` turns what the vendor shows into our words, ``driver`` joins them
behind the port, ``settings`` is ``[pool.vipu]``. Start reading at ``driver``.

It was written from public texts and tried against a stand-in (``testing.vipu_stand_in``). It has not met real
hardware. Refused: the vendor's gRPC interface, whose description is not public; the REST proxy of its Kubernetes
operator, which only counts.
"""
