"""A small certificate authority: certificates for controllers and their clients, and the folder that holds them.

``authority`` makes and reads certificates, ``folder`` stores them. Only what ``moor pki`` and the doctor call is
imported, and ``cryptography`` only when needed: it would double the time ``moor`` takes to start.
"""
