"""An installation as the page tells it, where SlurmUser is not root and the agent is SlurmUser: a job gets its IPUs."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.admin import moor, told
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.ipus import N_IPUS, IpuSite, site_of
from tests.slurm.programs import RELEASE
from tests.waiting import patient, until

SLURM_USER = "games"
UID = pwd.getpwnam(SLURM_USER).pw_uid


@pytest.fixture
def site(slurm_release: str) -> Iterator[IpuSite]:
    """A Slurm of that user's without anything of ours, and a controller; the agent is not started."""
    cluster = SlurmCluster(new_folder(), 1, release=slurm_release, extra_conf=f"SlurmUser={SLURM_USER}")
    with site_of(cluster, {"IpuofDir": ""}) as made:
        for part in ("state", "log"):
            os.chown(cluster.folder / part, UID, -1)
        made.controller.start()
        cluster.start()
        yield made


def install(site: IpuSite, mode: str, *more: str) -> dict[str, object]:
    """As root, by the defaults; a test has an address and a folder of its own."""
    library = str(site.cluster.folder / "lib" / "slurm")
    return told(
        site.cluster, "slurm", "install", mode, "--agent", f"127.0.0.1:{site.port}", "--library", library, *more
    )


def take_up(site: IpuSite, lines: list[dict[str, object]]) -> None:
    """Write what is printed into slurm.conf, and restart slurmctld."""
    texts = [line for each in lines for line in each["lines"]]  # type: ignore[attr-defined]
    site.cluster.configure("\n".join([f"SlurmUser={SLURM_USER}", *texts]))
    site.cluster.stop_controller()
    site.cluster.start_controller()
    site.cluster.wait_nodes()


def verdicts(site: IpuSite, *words: str, code: int = 0) -> dict[str, tuple[str, str, str]]:
    items = told(site.cluster, "slurm", "doctor", *words, code=code)["items"]
    return {item["id"]: (item["verdict"], item["evidence"], item.get("fix", "")) for item in items}


def test_installed_by_the_defaults_a_job_gets_its_ipus(site: IpuSite, slurm_release: str) -> None:
    if slurm_release != RELEASE:
        pytest.skip(f"Slurm {slurm_release} lies in a chroot, which the agent may not enter as {SLURM_USER}")
    done = install(site, "--apply", "--ipus", str(N_IPUS))
    loader = next(item for item in done["items"] if item["path"].endswith("/plugstack.conf"))  # type: ignore[attr-defined]
    assert loader["why"].endswith(f"the agent runs as {SLURM_USER}({UID})")
    conf = site.cluster.etc / "vipu.conf"
    assert (conf.stat().st_uid, conf.stat().st_mode & 0o777) == (UID, 0o600)
    site.write_conf()  # fills it in
    assert conf.stat().st_uid == UID
    take_up(site, done["lines"])  # type: ignore[arg-type]
    site.start_agent(SLURM_USER)
    until(lambda: site.room()[N_IPUS] == N_IPUS, what=site.log)

    ran = site.cluster.run("srun", "--ipus=2", "sh", "-c", "echo $IPUOF_VIPU_API_PARTITION_ID", user="man")
    assert ran.returncode == 0, ran.stderr + site.log()
    assert ran.stdout.strip(), ran.stderr

    found = verdicts(site)
    assert {found[check][0] for check in ("slurm.agent", "slurm.vipu", "slurm.pool", "slurm.waits")} == {"PASS"}
    assert f"as uid {UID}" in found["slurm.agent"][1]
    # The file is of the agent's user, and root installs again: here, or on a node that shares the folder.
    assert install(site, "--plan", "--ipus", str(N_IPUS), "--max-ipus", str(N_IPUS))["lines"] == []
    assert install(site, "--plan")["lines"] == []

    # With a line that does not name the agent's user nodes would wait for nothing.
    line = site.cluster.etc / "plugstack.conf"
    line.write_text(line.read_text().replace(f" agent_uid={UID}", ""))
    verdict, evidence, fix = verdicts(site, "--only", "slurm.agent", code=8)["slurm.agent"]
    assert verdict == "FAIL"
    assert f"127.0.0.1 runs as uid {UID}" in evidence
    assert f"--agent-uid {UID}" in fix


def test_a_vipu_conf_of_a_strangers_is_refused_and_the_hint_helps(site: IpuSite) -> None:
    conf = site.cluster.write_conf("vipu.conf", "ApiHost=ctl1\n", 0o600)
    os.chown(conf, pwd.getpwnam("man").pw_uid, -1)
    refused = moor(site.cluster, "slurm", "install", "--plan", "--ipus", "4")
    assert refused.returncode == 4
    hint = f"chown {SLURM_USER} {conf}"
    assert hint in " ".join(refused.stderr.split())
    assert hint in verdicts(site, "--only", "slurm.vipu", code=8)["slurm.vipu"][2]
    subprocess.run(hint.split(), check=True, timeout=patient(10))
    assert moor(site.cluster, "slurm", "install", "--plan", "--ipus", "4").returncode == 0
    assert Path(conf).read_text() == "ApiHost=ctl1\n"
