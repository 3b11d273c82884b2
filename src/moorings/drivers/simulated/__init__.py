"""Simulated accelerators: a machine with a realistic life, and with all the failures of real ones.

``partition`` gives a partition's state at any time, ``hardware`` is the machine, which outlives our process,
``vendor_controller`` carries out requests on it, ``faults`` and ``faults_file`` are its faults, ``spontaneous`` are
changes without a request, ``driver`` joins them behind the port and makes bindings for jobs. Start reading there.
"""
