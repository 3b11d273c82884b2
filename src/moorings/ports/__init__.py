"""The interfaces of the controller to the outside: Store, Leadership, Driver, Engine, Clock; each a small Protocol.

Each port has one conformance suite in ``moorings.testing`` that every implementation passes.

Not here: implementations. Each is in the folder named after its system, and only ``app`` chooses among them.
"""
