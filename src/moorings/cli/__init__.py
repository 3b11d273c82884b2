"""The ``moor`` command: parses the command line, calls the API, and prints results as tables.

Here: the grammar (``grammar``), the one table of commands (``commands``), configuration and credentials
(``configuration``), the columns and names of each kind of resource (``kinds``, ``output``), waiting with progress on
stderr (``progress``, ``following``), errors and exit codes (``errors``). Start reading at ``main.py``, then
``commands/__init__.py``.

Not here: HTTP (``client``), decisions about claims or devices (``core``), slow imports: a command's module is loaded
when the command is called, and the server's libraries never are.
"""
