"""How a launcher starts processes in its workers: the remote-exec script and the hostfile. Pure.

Open MPI starts a daemon in each worker through its "rsh agent", a program that it calls as ``AGENT HOST WORDS...``. The
words are quoted for a shell at the other end (``"env"`` comes with its quotes, a login profile as ``( test ! -r ...``).
The agent must join them with blanks and pass them to that shell, as rsh and ssh do. Open MPI starts it with /dev/null
as its input (``ssh_child`` in plm_rsh_module.c of releases 4.0 and 4.1); a call by a person behaves the same.
Rejected: ssh in the workers' images. It needs keys, and a daemon that users' images lack.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

_SCRIPT = """\
#!/bin/sh
# Runs a command in a worker, as ssh would: {name} [-OPTION...] POD WORD...
# The words are joined by blanks and are for the shell over there.
while [ $# -gt 0 ]; do
    case $1 in
    -*) shift ;;
    *) break ;;
    esac
done
if [ $# -lt 2 ]; then
    echo "usage: {name} POD COMMAND..." >&2
    exit 2
fi
pod=$1
shift
exec {kubectl} exec "$pod" -c {container} -- /bin/sh -c "$*" </dev/null
"""

NAME = "kubexec.sh"


def kubexec_script(container: str, kubectl_path: str) -> str:
    """The remote-exec script, for any POSIX shell.

    It ends with the command's own exit code. It ignores options before the Pod's name: they are ssh's.

    Args:
        container: of the workers.
        kubectl_path: path of the launcher's kubectl.
    """
    return _SCRIPT.format(name=NAME, kubectl=shlex.quote(kubectl_path), container=shlex.quote(container))


def hostfile(names: Iterable[str], slots: int) -> str:
    """Open MPI's list of workers.

    Args:
        names: of the workers' Pods, in the order of their ranks.
        slots: processes that each worker can run.
    """
    return "".join(f"{name} slots={slots}\n" for name in names)
