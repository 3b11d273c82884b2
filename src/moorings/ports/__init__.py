"""The few things the controller needs of the world: Store, Driver, Engine, Clock; each a small Protocol.

Each port has one conformance suite in ``moorings.testing`` that every implementation passes.

Not here: implementations. They live in the folder named after what they speak to, and ``app`` alone picks them.
"""
