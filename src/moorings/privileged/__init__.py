"""The part of a shared machine that runs as root: it starts jobs as the people who asked for them.

Here: the socket on which people hand in their jobs, the spool of these jobs, the socket on which the controller starts
and stops them, and each job's cgroup. Not here: what a job is, partitions, queues; ``local`` has the supervisor, which
runs as the person. Standard library only, and nothing of the rest of Moorings: this folder is what has to be read to
trust the machine. Begin with ``daemon``.

What it promises:

- It starts only what a person has handed in, and as that person; the kernel says who that is. A controller that was
  taken over can choose when, and with which limits, but not what.
- It opens no path of a job: the supervisor does, as the person.
- An attempt is started at most once, and has ended only when nothing is left in its cgroup.
"""
