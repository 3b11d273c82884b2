"""The seeded simulator: the real controller, store and simulated driver, in virtual time, with seeded faults.

``python -m moorings.testing.simulation --help`` runs it. ``episode`` joins the parts: ``virtual`` is time, ``odds`` all
randomness, ``world`` one life of a controller, ``gates`` its connections to the outside (where calls are late, lost or
doubled), ``engine`` the processes, ``people`` the clients (``rush`` has others), ``trouble`` the spontaneous faults.
``witness``, ``guarantees`` and ``ledger`` check every step against the laws; ``story`` and ``report`` record it.

Not here: faults of simulated hardware itself; those are the simulated driver's. Start reading at ``episode``.
"""
