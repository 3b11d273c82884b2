"""Container images: the command that runs a task in one, by podman (rootless) or apptainer, and which of them is here.

The commands are pure. What they promise is the same for both: the person's own uid, the network and the shared memory
of the machine, the home, ``/tmp`` and the job's folders under their own paths, of all devices only the task's, the
cgroup of the job, and no variable but the job's own. Values of variables stand on no command line.

podman starts a monitor (conmon) that leads a session of its own, and the processes of the container are that one's
children. So they are known by their root folder, never by their parents: see ``choose_receivers``.
"""

from __future__ import annotations

import enum
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moorings.core.model.errors import MooringsError
from moorings.engines.processes import Process, ProcessTable, descendants, has_variable, list_processes
from moorings.workloads.images import is_image_file

SHARED_FOLDERS = ("/dev/shm", "/tmp")  # noqa: S108 - they are the machine's, not a place for a file of ours
FABRIC = "/dev/infiniband"  # by which devices of several machines, and IPUs, are reached; no accelerator itself
INIT = "podman-init"  # the first process in a container of podman's, by its name; it passes signals on
MONITOR = "conmon"
PAUSE = "catatonit"  # keeps a person's user namespace for the next podman, and ends with the job that began it
# Programs, and Debian's packages of them.
PODMAN_NEEDS = (("newuidmap", "uidmap"), ("newgidmap", "uidmap"), ("crun or runc", "crun"))
SUBORDINATE_IDS = (Path("/etc/subuid"), Path("/etc/subgid"))
RUNTIME_END_S = 5.0  # for a runtime to remove its record of a container once nothing is left inside
RUNTIME_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# By these a runtime finds the person's images and settings. The job's own are for the job.
RUNTIME_VARIABLES = ("HOME", "PATH", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")


_NAME = re.compile(r"moorings-(.+)-[0-9]+-[0-9]+")


class RuntimeKind(enum.Enum):
    """The programs that run containers here."""

    PODMAN = "podman"
    APPTAINER = "apptainer"


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """One that was found: its kind, and the path of its program."""

    kind: RuntimeKind
    program: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerTask:
    """What runs in a container.

    Attributes:
        image: of the job, checked.
        name: of the container; no other one has it.
        command: program and arguments.
        workdir: its folder, absolute.
        folders: those of the machine that it has, under their own paths.
        devices: its device files.
        variables: all of its variables.
        is_terminal: its first three descriptors are a terminal.
    """

    image: str
    name: str
    command: tuple[str, ...]
    workdir: str
    folders: tuple[str, ...]
    devices: tuple[str, ...]
    variables: Mapping[str, str]
    is_terminal: bool = False


def build_run(runtime: ContainerRuntime, task: ContainerTask) -> tuple[str, ...]:
    """The command that runs a task in a container of its own, and exits as its program does."""
    if runtime.kind is RuntimeKind.APPTAINER:
        return _build_apptainer(runtime.program, task)
    terminal = ("--interactive", "--tty", "--detach-keys=") if task.is_terminal else ()
    return (
        *(*_podman(runtime), "run", "--rm", "--replace", f"--name={task.name}"),
        *("--init", "--entrypoint=", "--cgroups=disabled", "--cgroupns=host"),
        *("--userns=keep-id", "--group-add=keep-groups", "--cap-drop=all", "--security-opt=no-new-privileges"),
        *("--security-opt=label=disable", "--network=host", "--ulimit=host", "--http-proxy=false"),
        *("--log-driver=none", *terminal),  # podman copies the output; passed through, crun would change its owner
        *_mounts((*task.folders, *SHARED_FOLDERS)),
        *(f"--device={each}" for each in task.devices),
        *_variables(task.variables),
        *(f"--workdir={task.workdir}", task.image.removeprefix("docker://"), *task.command),
    )


def build_beside(runtime: ContainerRuntime, task: ContainerTask) -> tuple[str, ...]:
    """The command that runs another program in the container of a task that runs.

    With apptainer it is a container of its own: both are in the same namespaces of the machine.
    """
    if runtime.kind is RuntimeKind.APPTAINER:
        return _build_apptainer(runtime.program, task)
    streams = ("--interactive", *(("--tty", "--detach-keys=") if task.is_terminal else ()))
    given = (*_variables(task.variables), f"--workdir={task.workdir}")
    return (*_podman(runtime), "exec", *streams, *given, task.name, *task.command)


def build_pull(runtime: ContainerRuntime, image: str) -> tuple[str, ...]:
    """The command that fetches an image of podman's."""
    return (*_podman(runtime), "pull", image.removeprefix("docker://"))


def build_look(runtime: ContainerRuntime, image: str) -> tuple[str, ...]:
    """The command that exits with 0 if an image of podman's is here, with 1 if it is not."""
    return (*_podman(runtime), "image", "exists", image.removeprefix("docker://"))


def build_list(runtime: ContainerRuntime) -> tuple[str, ...]:
    """The command that prints the names of podman's containers, also of those that have ended."""
    return (*_podman(runtime), "ps", "--all", "--format={{.Names}}")


def parse_list(text: str) -> dict[str, str]:
    """The runs of ours that have a container, by its name."""
    return {found[0]: found[1] for found in map(_NAME.fullmatch, text.split()) if found is not None}


def build_removal(runtime: ContainerRuntime, names: Iterable[str]) -> tuple[str, ...]:
    """The command that removes podman's records of containers."""
    return (*_podman(runtime), "rm", "--force", "--ignore", "--time=0", *names)


def build_renewal(runtime: ContainerRuntime) -> tuple[str, ...]:
    """The command after which podman works again that looks for processes of a container which were all killed."""
    return (*_podman(runtime), "system", "migrate")


def container_name(run: str, attempt: int, rank: int) -> str:
    """The name of a task's container."""
    return f"moorings-{run}-{attempt}-{rank}"


def _podman(runtime: ContainerRuntime) -> tuple[str, ...]:
    """With systemd's cgroups it would move itself out of the job's, and see every device (facts: cluster section 5)."""
    return (runtime.program, "--cgroup-manager=cgroupfs", "--log-level=error")


def _build_apptainer(program: str, task: ContainerTask) -> tuple[str, ...]:
    image = task.image if is_image_file(task.image) or "://" in task.image else f"docker://{task.image}"
    return (
        *(program, "--silent", "exec", "--contain", "--no-home", "--no-privs", f"--pwd={task.workdir}"),
        *_mounts((*task.folders, *SHARED_FOLDERS, *task.devices)),
        *(image, *task.command),
    )


def _mounts(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"--mount=type=bind,source={each},destination={each}" for each in paths)


def _variables(variables: Mapping[str, str]) -> tuple[str, ...]:
    """By name: podman takes the values from its own. Only of those that it obeys itself the values stand here."""
    return tuple(
        f"--env={name}={value}" if _is_of_runtime(name) else f"--env={name}" for name, value in variables.items()
    )


def _is_of_runtime(name: str) -> bool:
    return name in RUNTIME_VARIABLES or name.startswith("LD_")


def build_variables(runtime: ContainerRuntime, own: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of the runtime's own process.

    Args:
        runtime: the runtime.
        own: those by which it finds the person's images: see ``RUNTIME_VARIABLES``.
        variables: the job's.
    """
    theirs = {name: value for name, value in variables.items() if not _is_of_runtime(name)}
    if runtime.kind is RuntimeKind.APPTAINER:
        theirs |= {f"APPTAINERENV_{name}": value for name, value in variables.items() if _is_of_runtime(name)}
    return {**theirs, "PATH": RUNTIME_PATH, **{name: own[name] for name in RUNTIME_VARIABLES if name in own}}


def choose_folders(paths: Iterable[str]) -> tuple[str, ...]:
    """Of folders the ones that are in no other, and in none that every container has; never the root folder.

    Raises:
        MooringsError: ``engine.rejected``: one of them cannot be named to a runtime.
    """
    chosen: list[str] = []
    for path in sorted({each.rstrip("/") for each in paths} - {""}):
        if any(letter in path for letter in ',"\n\r'):
            detail = f"the folder {path[:200]!r} cannot be given to a container"
            raise MooringsError("engine.rejected", detail, hint="use one without a comma or a quote in its path")
        if not any(path == each or path.startswith(f"{each}/") for each in (*chosen, *SHARED_FOLDERS)):
            chosen.append(path)
    return tuple(chosen)


# -- which is here -----------------------------------------------------------------------------------------------------


def find_runtime(image: str) -> ContainerRuntime:
    """The runtime of this machine for an image: podman for one of a registry, apptainer if there is no podman.

    Raises:
        MooringsError: ``container.no_runtime``.
    """
    kinds = (RuntimeKind.APPTAINER,) if is_image_file(image) else tuple(RuntimeKind)
    for kind in kinds:
        program = shutil.which(kind.value)
        if program is not None:
            return ContainerRuntime(kind, program)
    names = " or ".join(kind.value for kind in kinds)
    hint = f"its admin installs it: apt install {kinds[0].value}" if len(kinds) > 1 else "its admin installs it"
    raise MooringsError("container.no_runtime", f"this machine has no {names} to run {image} with", hint=hint)


def find_own_runtime(image: str) -> ContainerRuntime:
    """The runtime for an image that this process' user can use.

    Raises:
        MooringsError: ``container.no_runtime``.
    """
    runtime = find_runtime(image)
    if runtime.kind is RuntimeKind.APPTAINER:
        return runtime
    uid = os.getuid()
    if uid == 0:
        detail = "podman runs no job as root: root in it would not be confined"
        raise MooringsError("container.no_runtime", detail, hint="run moor as a user other than root")
    lacks = choose_lacking(lambda program: shutil.which(program, path=_search_path()) is not None)
    if lacks:
        packages = " ".join(dict.fromkeys(package for _, package in lacks))
        detail = f"podman lacks what it needs on this machine: {', '.join(programs for programs, _ in lacks)}"
        raise MooringsError("container.no_runtime", detail, hint=f"its admin installs them: apt install {packages}")
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    missing = [str(file) for file in SUBORDINATE_IDS if not has_subordinate_ids(_read(file), name, uid)]
    if missing and not _are_ids_elsewhere():
        hint = f"its admin gives them: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {name}"
        detail = f"podman needs subordinate ids for {name}, and there are none in {' and '.join(missing)}"
        raise MooringsError("container.no_runtime", detail, hint=hint)
    return runtime


def choose_lacking(is_here: Callable[[str], bool]) -> tuple[tuple[str, str], ...]:
    """Of ``PODMAN_NEEDS`` what is not here."""
    return tuple(each for each in PODMAN_NEEDS if not any(is_here(program) for program in each[0].split(" or ")))


def _search_path() -> str:
    """Where podman finds them: a person's PATH may lack ``/usr/sbin``, where runc is."""
    return f"{os.environ.get('PATH') or RUNTIME_PATH}:{RUNTIME_PATH}"


def has_subordinate_ids(text: str, name: str, uid: int) -> bool:
    """Whether a file as subuid(5) has ids for a user."""
    return any(line.split(":")[0] in (name, str(uid)) for line in text.splitlines() if line.count(":") == 2)


def _are_ids_elsewhere() -> bool:
    """Whether a directory service has them (nsswitch.conf(5))."""
    return any(line.split(":")[0].strip() == "subid" for line in _read(Path("/etc/nsswitch.conf")).splitlines())


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def remove_stale_records(runtime: ContainerRuntime, variables: Mapping[str, str]) -> None:
    """Remove the records of containers whose runs were killed with all that would have removed them.

    Such a record also keeps podman from working, if the process that kept the person's user namespace was killed, too.
    Nothing is done about what goes wrong here: what needs podman next will say so.

    Args:
        runtime: podman; any other keeps no records.
        variables: of its process.
    """
    if runtime.kind is not RuntimeKind.PODMAN:
        return
    run = partial(subprocess.run, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    listed = run(build_list(runtime))
    table = list_processes()
    if listed.returncode != 0 and not any(each.name == MONITOR and _is_own(each.pid) for each in table.values()):
        run(build_renewal(runtime))
        listed = run(build_list(runtime))
    found = parse_list(listed.stdout)
    stale = [name for name, of in found.items() if not any(has_variable(pid, "MOORINGS_RUN_ID", of) for pid in table)]
    if stale:
        run(build_removal(runtime, stale))


def _is_own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()  # noqa: PTH116 - as in ``engines.processes``
    except OSError:
        return False


# -- the processes of a job in containers ------------------------------------------------------------------------------


def find_programs(
    kind: RuntimeKind,
    tasks: Iterable[int],
    everyone: Iterable[Process],
    table: ProcessTable,
    inside: Callable[[int], bool],
) -> list[Process]:
    """The uppermost processes of the tasks' programs, in their containers; none of a program beside a task.

    Args:
        kind: of the runtime.
        tasks: the processes that were started for the tasks.
        everyone: all processes of the job.
        table: of all processes.
        inside: whether a process is in a container.
    """
    if kind is RuntimeKind.PODMAN:
        inits = {each.pid for each in everyone if each.name == INIT and inside(each.pid)}
        return [each for each in everyone if each.parent in inits]
    theirs = [each for each in descendants(tasks, table) if inside(each.pid)]
    pids = {each.pid for each in theirs}
    return [each for each in theirs if each.parent not in pids]


def choose_receivers(
    everyone: Iterable[Process], signum: int, inside: Callable[[int], bool], *, runtime_is_late: bool
) -> list[Process]:
    """The processes of a job in containers that get a signal now: those inside, as long as there are some.

    The runtime then ends by itself, and removes its record of the container; killed, it could not.

    Args:
        everyone: all processes of the job.
        signum: the signal.
        inside: whether a process is in a container.
        runtime_is_late: the runtime has had its time to end.
    """
    processes = list(everyone)
    theirs = [each for each in processes if inside(each.pid)]
    if signum == signal.SIGKILL:
        return theirs or [each for each in processes if runtime_is_late or each.name == PAUSE]  # which never ends
    return [each for each in theirs if each.name != INIT] or (processes if not theirs else [])
