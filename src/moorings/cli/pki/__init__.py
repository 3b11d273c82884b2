"""A small authority of one's own: certificates for controllers and their clients, and the folder they lie in.

``authority`` makes and reads certificates, ``folder`` keeps them. Only what is called from ``moor pki`` and the doctor
is imported, and ``cryptography`` not before it is needed: it would double the time ``moor`` takes to start.
"""
