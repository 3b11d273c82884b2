"""The proxy's HTTP API as its callers use it: shapes, and a client with a watch.

The launcher imports ``shapes``: standard library only. Start reading there.
"""
