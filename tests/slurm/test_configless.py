"""Configless Slurm: a node without files of its own is handed the plugin's line out, and holds jobs back by it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.admin import moor, told
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.slurm.ipus import N_IPUS, IpuSite, site_of
from tests.waiting import until

HANDS_OUT = "SlurmctldParameters=enable_configless"
PARTITION = ("sh", "-c", "echo $IPUOF_VIPU_API_PARTITION_ID")


@pytest.fixture
def site(slurm_release: str) -> Iterator[IpuSite]:
    """A Slurm without anything of ours whose second node is configless, and a controller; the agent is not started."""
    cluster = SlurmCluster(new_folder(), 2, release=slurm_release, extra_conf=HANDS_OUT, configless=[2])
    with site_of(cluster, {"IpuofDir": ""}) as made:
        made.controller.start()
        cluster.start()
        yield made


def library(site: IpuSite) -> list[str]:
    return ["--library", str(site.cluster.folder / "lib" / "slurm")]


def choices(site: IpuSite) -> list[str]:
    return [*library(site), "--agent", f"127.0.0.1:{site.port}", "--ipus", str(N_IPUS), "--max-ipus", str(N_IPUS)]


def done(told: dict[str, Any]) -> dict[str, str]:
    return {Path(item["path"]).name: item["action"] for item in told["items"]}


def verdicts(site: IpuSite, *, code: int = 0, before: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    items = told(site.cluster, "slurm", "doctor", code=code, before=before)["items"]
    return {item["id"]: (item["verdict"], item["evidence"]) for item in items}


@pytest.mark.slow
def test_a_node_without_files_gets_its_partition(site: IpuSite) -> None:
    cluster = site.cluster
    lib, own = cluster.folder / "lib", cluster.folder / "lib-n2"
    for folder in (lib, own):
        folder.mkdir()
    node = [*cluster.words_at(2), "sh", "-c", f'mkdir -p {lib} && mount --bind {own} {lib} && exec "$@"', "sh"]
    # On the node first, so that the plugin is there when its line comes.
    assert done(told(cluster, "slurm", "install", "--apply", *library(site), before=node)) == {
        "moorings_spank.so": "create"
    }
    lines = told(cluster, "slurm", "install", "--apply", *choices(site))["lines"]
    assert {Path(line["file"]).name for line in lines} == {"slurm.conf"}
    conf = [HANDS_OUT, *(text for line in lines for text in line["lines"])]
    cluster.configure("\n".join(conf))
    cluster.stop_controller()
    cluster.start_controller()
    cluster.wait_nodes()
    cluster.reconfigure()
    cached = cluster.folder / "spool" / "n2" / "conf-cache" / "plugstack.conf"
    until(lambda: cached.exists() and "moorings_spank.so" in cached.read_text())
    cluster.wait_nodes()
    site.write_conf()
    site.start_agent()
    until(lambda: site.room()[N_IPUS] == N_IPUS, what=site.log)

    for place in ([], node):  # asked for beside slurmctld, and on the node
        ran = cluster.run("srun", "-w", "n2", "--ipus=4", *PARTITION, before=place)
        assert ran.returncode == 0, ran.stderr + site.log()
        assert ran.stdout.strip(), "it ran without a partition"
    assert {check for check, (verdict, _) in verdicts(site).items() if verdict not in ("PASS", "SKIP")} == set()
    found = verdicts(site, before=node)
    assert {
        check: verdict for check, (verdict, _) in found.items() if check in LOOKED_AT_ON_NODES
    } == LOOKED_AT_ON_NODES
    assert found["slurm.select"][1].startswith("/run/slurm/conf/slurm.conf")

    # As earlier releases installed it: what plugstack.conf takes in is not handed out.
    line = (cluster.etc / "plugstack.conf").read_text()
    cluster.write_conf("plugstack.conf.d/moorings.conf", line)
    cluster.write_conf("plugstack.conf", f"include {cluster.etc}/plugstack.conf.d/*.conf\n")
    verdict, evidence = verdicts(site, code=8)["slurm.plugin"]
    assert (verdict, "does not hand out" in evidence) == ("FAIL", True)

    early = moor(cluster, "slurm", "install", "--uninstall", *library(site), before=node)
    assert (early.returncode, "/run/slurm/conf/plugstack.conf still loads" in early.stderr) == (0, True), early.stderr
    told(cluster, "slurm", "install", "--apply", *library(site), before=node)
    (cluster.etc / "plugstack.conf.d" / "moorings.conf").unlink()
    cluster.write_conf("plugstack.conf", line)

    # Taken away as the page says.
    cluster.configure("\n".join(text for text in conf if not text.startswith("JobSubmitPlugins")))
    cluster.stop_controller()
    cluster.start_controller()
    cluster.wait_nodes()
    site.end_agent(signal.SIGTERM)
    assert set(done(told(cluster, "slurm", "install", "--uninstall", *library(site))).values()) == {"remove", "keep"}
    cluster.check("scontrol", "delete", "reservationname=moorings")
    cluster.reconfigure()
    until(lambda: not cached.exists())
    cluster.wait_nodes()
    last = moor(cluster, "slurm", "install", "--uninstall", *library(site), before=node)
    assert (last.returncode, last.stderr) == (0, "")
    cluster.configure(HANDS_OUT)
    cluster.reconfigure()
    cluster.wait_nodes()
    assert [*cluster.etc.glob("*moor*"), *lib.rglob("*.so"), *own.rglob("*")] == []
    for place in ([], node):
        ran = cluster.run("srun", "-N2", "true", before=place)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "unrecognized option" in cluster.run("srun", "--ipus=1", "true", before=place).stderr


LOOKED_AT_ON_NODES = {
    **dict.fromkeys(("slurm.select", "slurm.controller", "slurm.munge", "slurm.plugin", "slurm.options"), "PASS"),
    **dict.fromkeys(("slurm.agent", "slurm.requeue"), "PASS"),
    **dict.fromkeys(("slurm.submit", "slurm.limits", "slurm.vipu"), "SKIP"),
}
