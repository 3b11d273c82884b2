"""The init container of a launcher's Pod: waits for workers and partition. Standard library only.

Start reading at ``init``.
"""
