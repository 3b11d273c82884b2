"""The seeded simulator: the real controller, store and simulated driver, in virtual time, under seeded trouble.

``python -m moorings.testing.simulation --help`` runs it. ``episode`` joins the parts: ``virtual`` is time, ``odds`` all
chance, ``world`` one life of a controller, ``gates`` its ways to the outside (where calls are late, lost or doubled),
``engine`` the processes, ``people`` the clients (in a ``rush`` others), ``trouble`` what happens by itself.
``witness``, ``guarantees`` and ``ledger`` judge every step by the laws; ``story`` and ``report`` tell of it.

Not here: faults of simulated hardware itself; those are the simulated driver's. Start reading at ``episode``.
"""
