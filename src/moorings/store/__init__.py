"""The database that holds one installation: SQL through SQLAlchemy Core, migrations by alembic; SQLite or PostgreSQL.

Here: the tables and their constraints (``tables``), records to rows and back (``rows``), the statements of one commit
(``saving``) and the errors when the database rejects one (``conflicts``), the port's implementation (``sql``), what
each kind of database adds (``database``; ``sqlite``; ``postgresql`` over its ``session``), upgrades from an older
release's tables (``upgrade``, ``migrations``), and which of several controllers leads (``leader_lock``).

Not here: decisions (``core``, ``workloads``), memory (``controller``), files of runs (``local``).
Start reading at ``tables.py`` (the laws the database itself keeps), then ``sql.py``.

To change a table: record what the release sends to its tables now (``tests/unit/store/recording.py``); change
``tables.py``; add ``migrations/versions/NNNN_what.py``; set ``upgrade.HEAD``; extend ``rows.py`` and the strategies of
its test. ``tests/unit/store`` fails until all of them agree.
"""
