"""Alembic's scripts: ``env.py`` connects them to a connection, ``versions`` holds one step each, oldest first.

Steps are written manually and never change after a release: they say what was true then, not what ``tables`` says.
"""
