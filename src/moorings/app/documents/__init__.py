"""The generated documents, one file a page: each function gives the text of a page, made from the code it tells about.

Prose that no code can give (what to do about an error, what a key of a file means) stands here beside the table it
completes, and tests compare the two, so neither can grow without the other. Pages by hand were refused for reference:
they are wrong a month later. ``moorings.app.docs`` writes the pages; here nothing touches a file.
"""
