"""``moor explain slurm``: users without a key ask the agent who they are by munge; with one, the controller."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.slurm.admin import moor, surroundings
from tests.slurm.ipus import IpuSite, ipu_site
from tests.slurm.programs import RELEASE
from tests.waiting import until

HOLDS = "until [ -e over.$SLURM_JOB_ID ]; do sleep 0.1; done"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(slurm_release: str) -> Iterator[IpuSite]:
    if slurm_release != RELEASE:
        pytest.skip(f"Slurm {slurm_release} lies in a chroot, which only root may enter, and users ask here")
    with ipu_site(slurm_release, nodes=2) as made:
        yield made


@pytest.fixture
def jobs(site: IpuSite) -> Iterator[tuple[int, int]]:
    """One of man's that runs on all devices, one of games' that waits for them."""
    first = site.cluster.sbatch(HOLDS, "--ipus=16", user="man")
    site.cluster.wait_job(first, "RUNNING")
    second = site.cluster.sbatch("true", "--ipus=16", user="games")
    yield first, second
    (site.cluster.work / f"over.{first}").touch()
    site.cluster.wait_job(second, "COMPLETED")
    site.settle()


def explained(site: IpuSite, job: object, user: str | None, *, key: str = "") -> tuple[int, str]:
    """Exit code and what is said."""
    home = site.cluster.work / f"home-{user}"
    home.mkdir(exist_ok=True)
    where = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}
    where["MOORINGS_ACCESS_KEY"] = key
    where["MOORINGS_SERVER"] = f"http://127.0.0.1:{site.controller.port}"
    done = moor(site.cluster, "explain", "slurm", str(job), env=where, user=user)
    return done.returncode, done.stdout + done.stderr


def test_a_user_without_a_key_reads_why_his_job_waits_and_of_nobody_elses(site: IpuSite, jobs: tuple[int, int]) -> None:
    first, second = jobs
    why = f"still held by man's job {first}"
    until(lambda: why in explained(site, second, "games")[1], what=lambda: explained(site, second, "games")[1])
    code, said = explained(site, f"{site.name}/{second}", "games")
    assert (code, said.startswith(f"job {second} on slurm/{site.name}: devices 0-15 of pod16 are kept for it")) == (
        0,
        True,
    )
    assert "slurmagent" not in said
    assert explained(site, first, "man") == (
        0,
        f"job {first} on slurm/{site.name}: it waits no more: Slurm says RUNNING\n",
    )
    assert why in explained(site, second, None)[1], "root may"
    for job in (second, 4_000_000):  # what waits and what does not exist are the same to a stranger
        code, said = explained(site, job, "man")
        assert (code, f"no job {job} of yours" in said, why in said) == (3, True, False), said
    assert "not of 'other'" in explained(site, f"other/{second}", "games")[1]


def test_with_a_key_the_controller_is_asked(site: IpuSite, jobs: tuple[int, int]) -> None:
    first, second = jobs
    wanted = {"subject": f"desk{second}", "role": "agent", "ownerPrefix": f"slurm/{site.name}"}  # which sees its claims
    key = site.controller.ask("POST", "/v1/keys", wanted)[1]["secret"]
    until(lambda: "still held by" in explained(site, second, "games")[1])  # the agent has told of it
    site.end_agent()
    try:
        why = f"still held by job {first} on slurm/{site.name}"
        code, said = explained(site, second, "games", key=key)
        assert (code, why in said, "[queue.reserved]" in said) == (0, True, True), said
        code, said = explained(site, first, "backup", key=key)
        assert (code, "is READY" in said) == (0, True), said
        code, said = explained(site, second, "games")
        assert (code != 0, "the agent does not answer" in said) == (True, True), said
    finally:
        site.start_agent()


# Answers whoever asks, as the user that it runs as.
IMPOSTOR = """
import socket, sys
from moorings.core.model.errors import MooringsError
from moorings.slurm.host.wait_reason import build_reply, parse_request
from moorings.slurm.munge import Munge
munge = Munge(sys.argv[1])
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listening:
    print("listens", flush=True)
    while True:
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as lines:
            try:
                request = parse_request(munge.decode(lines.readline().decode().strip()).payload)
            except MooringsError:
                continue  # a node's
            connection.sendall(munge.encode(build_reply(request, "because I say so")).encode() + b"\\n")
"""


def test_who_is_not_the_agent_is_not_believed(site: IpuSite, jobs: tuple[int, int]) -> None:
    """Law 10: whoever listens at the agent's address is believed as root, or as the plugin's agent_uid, alone."""
    _, second = jobs
    site.end_agent()
    words = [sys.executable, "-c", IMPOSTOR, str(site.cluster.munge_socket), str(site.port)]
    switch = ["setpriv", "--reuid=backup", "--regid=backup", "--init-groups", "--pdeathsig=KILL", "--"]
    environment = surroundings(site.cluster)
    with subprocess.Popen([*switch, *words], stdout=subprocess.PIPE, text=True, env=environment, cwd="/") as impostor:
        try:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == "listens\n"
            code, said = explained(site, second, "games")
            assert (code != 0, "because I say so" in said, "is not believed" in said) == (True, False, True), said
        finally:
            impostor.kill()
            site.start_agent()
    assert explained(site, second, "games")[0] == 0
