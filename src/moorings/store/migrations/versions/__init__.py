"""One module a step: ``NNNN_what.py``."""
