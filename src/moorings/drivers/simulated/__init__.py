"""Simulated accelerators: a machine with a realistic life, and with every trouble real ones give.

``partition`` says what a partition's state is at an instant, ``hardware`` is the machine that outlives us, ``vendor``
takes orders for it, ``faults`` and ``faults_file`` are what troubles it, ``happenings`` what befalls it without an
order, ``binding`` is what jobs are given, ``driver`` joins them behind the port. Start reading there.
"""
