"""Alembic's scripts: ``env.py`` joins them to a connection, ``versions`` holds one step each, oldest first.

Steps are written out by hand and never changed after a release: they say what was true then, not what ``tables`` says.
"""
