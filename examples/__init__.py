"""Jobs that people can run and copy: each is a folder with a `job.toml`, and each is run by a test.

Not here: anything of Moorings itself. An example uses what any job is given (environment, files, signals)
and imports nothing from `moorings` unless showing that import is its point. Start with `digits`.
"""
