"""The typed client of the HTTP API, for the command line, the hooks and users' programs.

Here: ``requests`` builds every request and parses every response without IO; ``transport`` sends them over
``http.client``; ``sse`` reads event streams; ``client`` joins them into one method a call. Start at ``client.py``.

Not here: the sources of the server's address and the access key (``cli.configuration``), tables for people (``cli``),
any dependency: this must start in a few hundredths of a second.
"""
