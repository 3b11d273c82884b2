"""The database that holds one installation: SQL through SQLAlchemy Core and migrations by alembic; SQLite today.

Here: the tables and their constraints (``tables``), records to rows and back (``rows``), the statements of one commit
(``saving``) and what to say when the database refuses one (``conflicts``), the port's implementation (``sql``), what a
kind of database must add (``database``, ``sqlite``), and the way from an older release's tables (``upgrade``,
``migrations``).

Not here: decisions (``core``, ``workloads``), what is kept in memory (``controller``), files of runs (``local``).
Start reading at ``tables.py`` (the laws the database itself keeps), then ``sql.py``.

To change a table: change ``tables.py``; add ``migrations/versions/NNNN_what.py``; set ``upgrade.HEAD``; extend
``rows.py`` and the strategies of its test. ``tests/unit/store/test_upgrade.py`` fails until all of them agree.
"""
