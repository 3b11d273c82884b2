"""The generated documents, one file a page: each function returns the text of a page, made from the code.

Prose that the code cannot give (how to fix an error, the meaning of a file's key) stands here beside the table it
completes. Tests compare the two, so neither can grow without the other. Hand-written reference pages were refused: they
are wrong a month later. ``moorings.app.docs`` writes the pages; this folder touches no file.
"""
