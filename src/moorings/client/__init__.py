"""The typed client of the HTTP API, for the command line, the hooks and users' programs.

Here: ``requests`` builds a request from its row in ``wire.operations``, without IO; ``transport`` sends it over
``http.client``; ``sse`` reads event streams; ``client`` joins them into one method a call. Start at ``client.py``.

Not here: the sources of the server's address and the access key (``terminal.configuration``), tables for people
(``cli``), any dependency: this must start in a few hundredths of a second.
"""
