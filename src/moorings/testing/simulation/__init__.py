"""The seeded simulator: the real controller, store and simulated driver, in virtual time, with seeded faults.

``python -m moorings.testing.simulation --help`` runs it. ``episode`` joins the parts: ``virtual_time`` is time,
``fault_plan`` all randomness, ``controller`` one life of a controller, ``faulty`` its connections to the outside (where
calls are late, lost or doubled), ``engine`` the processes, ``clients`` the clients (``guarantee_rush`` has others),
``fault_injector`` the spontaneous faults. ``invariant_checker``, ``guarantee_checker`` and ``committed_state`` check
every step against the laws; ``episode_log`` and ``report`` record it.

Not here: faults of simulated hardware itself; those are the simulated driver's. Start reading at ``episode``.
"""
