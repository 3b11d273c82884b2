"""Building blocks of tests, shipped, because drivers and stores outside this project need the same tests as ours.

Here: one conformance suite a port (``driver_suite``, ``engine_suite``, ``store_suite``): a class of tests to subclass
with a fixture that makes the implementation; builders of records (``builders``); the seeded simulator that runs the
real controller in virtual time (``simulation``); a stand-in for a vendor's command (``fake_vipu``).

Not here: tests themselves (``tests``), and fakes of our own parts: there are none, the real ones are fast enough.
Start reading at the suite of the port that you implement.
"""
