"""The ``moor`` command: parses the command line, calls the API, and prints results as tables.

Here: the grammar (``command_tree``), the one table of commands (``commands``), the columns and names of each kind of
resource (``resources``, ``output``). Start reading at ``main.py``, then ``commands/__init__.py``.

Not here: console, configuration and waiting (``terminal``), HTTP (``client``), decisions about claims or devices
(``core``), slow imports: a command's module is loaded when the command is called, and the server's libraries never are.
"""
