"""Simulated accelerators: a machine with a realistic life, and with all the failures of real ones.

``partition`` gives a partition's state at any time, ``hardware`` is the machine, which outlives our process, ``vendor``
carries out requests on it, ``faults`` and ``faults_file`` are its faults, ``happenings`` are changes without a request,
``binding`` makes bindings for jobs, ``driver`` joins them behind the port. Start reading there.
"""
