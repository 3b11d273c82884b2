"""The interfaces of the controller to the outside, each a small Protocol.

Here: Store, ArchiveWriter, Leadership, Driver, Engine, UsageMeter, Clock and Ids; and for clients Mirror. Stores,
drivers and engines have one conformance suite each in ``moorings.testing``, which every implementation passes.

Not here: implementations. Each is in the folder named after its system, and only ``app`` chooses among them.
"""
