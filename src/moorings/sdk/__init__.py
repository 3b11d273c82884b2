"""What a Python program uses: ``moorings.submit`` starts a command or a function as a run, and returns a ``Run``.

``submitting`` has ``submit`` and ``map_array``; ``runs`` has ``Run``; ``functions`` keeps a function, its arguments and
its results in files of their person; ``function_task`` is the program of a job that calls a function. Start reading at
``submitting``. Not here: how a job is built and handed in (``submission``), and the requests themselves (``client``).
"""
