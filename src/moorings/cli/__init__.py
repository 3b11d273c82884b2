"""The ``moor`` command: words of a person into calls, answers into tables.

Here: the grammar (``grammar``), the one table of commands (``commands``), configuration and credentials
(``configuration``), what is shown of each kind of thing (``kinds``, ``output``), waiting in the open (``progress``,
``following``), errors and exit codes (``errors``). Start reading at ``main.py``, then ``commands/__init__.py``.

Not here: HTTP (``client``), any decision about claims or devices (``core``), anything slow to import: a command's
module is loaded when it is called, and the libraries of the server never.
"""
