"""``moor slurm install`` on real Slurm: what it adds works, what is the site's stays, and uninstall leaves nothing."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings.slurm.formats import build_jobs, parse_jobs
from moorings.slurm.host.install_plan import digest_of
from tests.slurm.admin import MOOR, moor, surroundings, told
from tests.slurm.cluster import SlurmCluster, new_folder
from tests.waiting import patient

SITES_SCRIPT = """\
-- the site's own rule
{calls}
function slurm_job_submit(desc, parts, uid)
{submit}
    if desc.name == "forbidden" then return slurm.ERROR end
    return slurm.SUCCESS
end
function slurm_job_modify(desc, job, parts, uid)
{modify}
    return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@pytest.fixture
def cluster(slurm_release: str) -> Iterator[SlurmCluster]:
    with SlurmCluster(new_folder(), 1, release=slurm_release) as made:
        yield made


def library(cluster: SlurmCluster) -> Path:
    return cluster.folder / "lib" / "slurm"


def choices(cluster: SlurmCluster) -> list[str]:
    return ["--library", str(library(cluster)), "--ipus", "4", "--agent", "127.0.0.1:8091"]


def install(cluster: SlurmCluster, mode: str, *more: str) -> dict[str, str]:
    """What was done about each file."""
    items = told(cluster, "slurm", "install", mode, *choices(cluster), *more)["items"]
    return {Path(item["path"]).name: item["action"] for item in items}


def lines_to_add(cluster: SlurmCluster) -> dict[str, list[str]]:
    """What it asks the site to write, by file."""
    found: dict[str, list[str]] = {}
    for line in told(cluster, "slurm", "install", "--plan", *choices(cluster))["lines"]:
        found.setdefault(Path(line["file"]).name, []).extend(line["lines"])
    return found


def take_up(cluster: SlurmCluster) -> None:
    """Write the lines into slurm.conf and restart slurmctld, as the page says."""
    cluster.configure("\n".join(lines_to_add(cluster)["slurm.conf"]))
    cluster.stop_controller()
    cluster.start_controller()
    cluster.wait_nodes()


def tree(cluster: SlurmCluster) -> dict[str, bytes]:
    """Every file of the configuration and of the library."""
    folders = (cluster.etc, library(cluster))
    return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def ours(cluster: SlurmCluster) -> list[str]:
    return sorted(Path(path).name for path in tree(cluster) if "moorings" in Path(path).name)


@pytest.mark.smoke
@pytest.mark.slow
def test_from_nothing_to_a_job_and_back(cluster):
    before = tree(cluster)
    assert set(install(cluster, "--plan").values()) == {"create"}
    assert tree(cluster) == before
    assert set(install(cluster, "--apply").values()) == {"create"}
    assert set(install(cluster, "--apply").values()) == {"same"}
    assert (cluster.etc / "vipu.conf").stat().st_mode & 0o777 == 0o600
    assert cluster.run("sh", "-c", f"test -r {library(cluster) / 'moorings_spank.so'}", user="games").returncode == 0

    take_up(cluster)
    assert lines_to_add(cluster) == {}
    assert "--ipus" in cluster.check("srun", "--help", user="games")
    job = cluster.sbatch("true", "--hold", "--ipus=4", "--num-replicas=2", user="games")
    recorded = parse_jobs(cluster.check(*build_jobs(jobs=[job])).encode())[0]
    assert recorded.licenses == {"ipu": 4, "ipu_1": 4, "ipu_2": 4, "ipu_4": 4}
    assert recorded.order is not None
    assert (recorded.order.ipus, recorded.order.gcds, recorded.order.replicas) == (4, 1, 2)
    refused = cluster.run("sbatch", "--ipus=8", "--wrap=true", user="games")
    assert refused.returncode != 0
    assert "4" in refused.stderr
    plain = cluster.sbatch("true", user="games")
    cluster.wait_job(plain, "COMPLETED")
    cluster.check("scancel", str(job))

    # Without its script slurmctld would refuse every job, so it must be told first.
    stopped = moor(cluster, "slurm", "install", "--uninstall", "--library", str(library(cluster)))
    assert stopped.returncode == 1
    assert "JobSubmitPlugins=lua" in stopped.stderr
    assert "moorings_submit.lua" in ours(cluster)
    cluster.configure("")
    assert set(install(cluster, "--uninstall").values()) == {"remove"}
    assert tree(cluster).keys() == before.keys()
    assert not library(cluster).exists()
    assert install(cluster, "--uninstall") == {}


def test_a_site_with_files_of_its_own_keeps_them(cluster):
    script = SITES_SCRIPT.format(calls="", submit="", modify="")
    own = {"job_submit.lua": script, "plugstack.conf": "# the site's\n", "vipu.conf": "ApiHost=ctl1\n"}
    for name, text in own.items():
        cluster.write_conf(name, text, 0o600 if name == "vipu.conf" else 0o644)
    actions = install(cluster, "--apply", "--force")
    assert {actions[name] for name in own} == {"keep", "same"}
    assert {name: (cluster.etc / name).read_text() for name in own} == own

    # What it says to add is added, word for word, and does it.
    added = lines_to_add(cluster)
    path, require, *calls = added["job_submit.lua"]
    submit, modify = "\n".join(calls[1:3]), "\n".join(calls[4:6])
    own["job_submit.lua"] = SITES_SCRIPT.format(calls=f"{path}\n{require}", submit=submit, modify=modify)
    own["plugstack.conf"] += "\n".join(added["plugstack.conf"]) + "\n"
    for name in ("job_submit.lua", "plugstack.conf"):
        cluster.write_conf(name, own[name])
    take_up(cluster)
    assert lines_to_add(cluster) == {}
    job = cluster.sbatch("true", "--hold", "--ipus=2", user="games")
    assert cluster.job(job)["Licenses"] == "ipu:2,ipu_1:2,ipu_2:2"
    opened = cluster.run("scontrol", "update", f"jobid={job}", "licenses=", user="games")
    assert opened.returncode != 0
    assert cluster.run("sbatch", "--job-name=forbidden", "--wrap=true", user="games").returncode != 0

    refused = moor(cluster, "slurm", "install", "--uninstall", "--library", str(library(cluster)))
    assert refused.returncode == 1
    cluster.configure("")
    install(cluster, "--uninstall")
    assert {name: (cluster.etc / name).read_text() for name in own} == own
    assert ours(cluster) == []


def test_what_was_changed_by_hand_stays(cluster):
    install(cluster, "--apply")
    stack = cluster.etc / "plugstack.conf"
    changed = stack.read_text().replace("wait=60", "wait=30")
    assert changed != stack.read_text()
    stack.write_text(changed)
    assert install(cluster, "--apply")["plugstack.conf"] == "keep"
    assert stack.read_text() == changed
    assert ["wait=60" in line for line in lines_to_add(cluster)["plugstack.conf"]] == [True]
    done = moor(cluster, "slurm", "install", "--uninstall", "--library", str(library(cluster)))
    assert f"{stack} still loads {library(cluster)}/moorings_spank.so" in done.stderr
    assert {Path(path).name for path in tree(cluster)} >= {"plugstack.conf", "installed.json"}
    assert ours(cluster) == []
    assert stack.read_text() == changed

    assert install(cluster, "--apply", "--force")["plugstack.conf"] == "update"
    assert "wait=60" in stack.read_text()


def test_what_an_earlier_release_installed_is_taken_over(cluster):
    install(cluster, "--apply")
    stack, loader = cluster.etc / "plugstack.conf", cluster.etc / "plugstack.conf.d" / "moorings.conf"
    line, manifest = stack.read_text(), library(cluster) / "installed.json"
    cluster.write_conf("plugstack.conf.d/moorings.conf", line)
    cluster.write_conf("plugstack.conf", f"# Made by 'moor slurm install'.\ninclude {loader.parent}/*.conf\n")
    known = json.loads(manifest.read_text())
    known["files"] = [file for file in known["files"] if file["path"] != str(stack)]
    known["files"] += [{"path": str(path), "sha256": [digest_of(path.read_bytes())]} for path in (loader, stack)]
    manifest.write_text(json.dumps(known))
    assert "--ipus" in cluster.check("srun", "--help")

    actions = install(cluster, "--apply")
    assert {name: action for name, action in actions.items() if action != "same"} == {
        "plugstack.conf": "update",
        "moorings.conf": "remove",
    }
    assert stack.read_text() == line
    assert not loader.exists()
    helped = cluster.run("srun", "--help")
    assert "--ipus" in helped.stdout
    assert "provided by both" not in helped.stderr
    assert set(install(cluster, "--apply").values()) == {"same"}
    assert set(install(cluster, "--uninstall").values()) == {"remove"}
    assert ours(cluster) == []


def test_a_folder_that_a_site_takes_in_gets_the_line(cluster):
    """As Debian ships plugstack.conf."""
    loader = cluster.etc / "plugstack.conf.d" / "moorings.conf"
    cluster.write_conf("plugstack.conf", f"include {loader.parent}/*.conf\n")
    actions = install(cluster, "--apply")
    assert (actions["moorings.conf"], actions["plugstack.conf"]) == ("create", "keep")
    assert "plugstack.conf" not in lines_to_add(cluster)
    assert "--ipus" in cluster.check("srun", "--help")
    assert install(cluster, "--apply", "--wait", "90")["moorings.conf"] == "update"
    cluster.write_conf(
        "plugstack.conf", loader.read_text().replace("Made", "Copied")
    )  # the site makes the line its own
    assert install(cluster, "--apply")["moorings.conf"] == "remove"
    assert not loader.exists()


def test_headers_of_another_release_write_nothing(cluster, tmp_path):
    before = tree(cluster)
    shutil.copytree(cluster.programs.headers / "slurm", tmp_path / "slurm")
    header = tmp_path / "slurm" / "slurm_version.h"
    lines = [line for line in header.read_text().splitlines() if "define SLURM_VERSION_NUMBER" not in line]
    header.write_text("\n".join(["#define SLURM_VERSION_NUMBER 0x150805", *lines, ""]))
    done = moor(cluster, "slurm", "install", "--apply", *choices(cluster), env={"CPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "the headers are of Slurm 21.08.5" in done.stderr
    assert tree(cluster) == before


@pytest.mark.parametrize(
    ("env", "words"),
    [({"CPATH": "/nowhere"}, "slurm/spank.h"), ({"CC": "no-such-compiler"}, "cannot be run")],
)
def test_what_is_missing_is_named(cluster, env, words):
    done = moor(cluster, "slurm", "install", "--apply", *choices(cluster), env=env)
    assert done.returncode == 1
    assert words in done.stderr
    assert "libslurm-dev" in done.stderr


def test_nodes_that_would_give_up_before_the_agent_are_not_made(cluster):
    cluster.write_conf("vipu.conf", "ApiHost=ctl1 ApiTimeout=90\n", 0o600)
    done = moor(cluster, "slurm", "install", "--apply", *choices(cluster))
    assert done.returncode != 0
    assert "ApiTimeout=90" in done.stderr
    assert "--wait 100" in done.stderr
    assert ours(cluster) == []
    install(cluster, "--apply", "--wait", "100")
    assert "wait=100" in (cluster.etc / "plugstack.conf").read_text()


def test_a_later_installation_keeps_what_was_chosen(cluster):
    """After an upgrade of Slurm the page says ``--apply`` alone: nodes must still find the agent."""
    agent = "127.0.0.1:9191"
    words = ["--library", str(library(cluster)), "--ipus", "4"]
    told(cluster, "slurm", "install", "--apply", *words, "--agent", agent, "--wait", "100")
    assert (cluster.etc / "vipu.conf").read_text().endswith("\nAgentPort=9191\n"), "the agent listens there"
    line = (cluster.etc / "plugstack.conf").read_text()
    again = told(cluster, "slurm", "install", "--apply", *words)
    assert {item["action"] for item in again["items"]} == {"same"}
    assert (cluster.etc / "plugstack.conf").read_text() == line
    assert (f" agent={agent} " in line, " wait=100 " in line) == (True, True)


def test_the_exit_codes_that_a_site_requeues_stay(cluster):
    cluster.configure("RequeueExit=3,7-9")
    cluster.reconfigure()
    assert "RequeueExit=3,7-9,122" in lines_to_add(cluster)["slurm.conf"]
    cluster.configure("RequeueExit=3,120-125")
    cluster.reconfigure()
    assert not [line for line in lines_to_add(cluster)["slurm.conf"] if line.startswith("RequeueExit")]


def test_without_slurmctld_it_says_so(cluster):
    cluster.kill_controller()
    done = moor(cluster, "slurm", "install", "--plan", *choices(cluster))
    assert done.returncode == 7
    assert "slurm.unavailable" in done.stderr


def test_how_many_ipus_there_are_is_not_guessed(cluster):
    done = moor(cluster, "slurm", "install", "--plan", "--library", str(library(cluster)))
    assert done.returncode == 2
    assert "--ipus" in done.stderr


def test_where_it_may_not_write_it_says_so(cluster):
    before = tree(cluster)
    done = moor(cluster, "slurm", "install", "--apply", *choices(cluster), "--library", "/dev/null/slurm")
    assert done.returncode == 4
    assert "/dev/null/slurm" in done.stderr
    assert tree(cluster) == before


def test_a_link_is_not_followed(cluster):
    victim = cluster.folder / "victim"
    victim.write_text("precious")
    (cluster.etc / "moorings_limits.lua").symlink_to(victim)
    assert install(cluster, "--apply", "--force")["moorings_limits.lua"] == "keep"
    assert victim.read_text() == "precious"


def test_two_at_once_do_not_mix(cluster):
    command = [str(MOOR), "slurm", "install", "--apply", *choices(cluster)]
    both = [
        subprocess.Popen(
            command,
            env=surroundings(cluster),
            cwd=cluster.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [process.communicate(timeout=patient(60)) for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes[0] == 0, ends
    assert codes[1] in (0, 5), ends  # done already, or told that another is at work
    assert set(install(cluster, "--apply").values()) == {"same"}


@pytest.mark.slow
def test_killed_at_any_moment_it_can_be_done_again_and_undone(cluster, tmp_path):
    before = tree(cluster)
    chance = random.Random(7)
    command = [str(MOOR), "slurm", "install", *choices(cluster)]
    for turn in range(12):
        mode = "--uninstall" if turn % 4 == 3 else "--apply"
        limits = ["--ipus", str(chance.choice([2, 4]))]  # so that there is something to change
        process = subprocess.Popen(
            [*command, mode, *limits],
            env={**surroundings(cluster), "TMPDIR": str(tmp_path)},
            cwd=cluster.work,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(chance.uniform(0.1, 0.9))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert "keep" not in install(cluster, "--plan").values()
    actions = install(cluster, "--apply")
    assert set(actions.values()) <= {"create", "update", "same"}
    assert set(install(cluster, "--uninstall").values()) == {"remove"}
    assert tree(cluster).keys() == before.keys()


def test_a_site_of_the_select_plugin_is_told_what_to_write(cluster, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSelectType=select/vipu\nSelectTypeParameters = other_cons_res,CR_CPU\n")
    done = moor(cluster, "slurm", "install", "--plan", "--ipus", "4", env={"SLURM_CONF": str(conf)})
    assert done.returncode == 1
    assert "SelectType=select/cons_tres; SelectTypeParameters=CR_CPU" in done.stderr
    assert list(tmp_path.iterdir()) == [conf]
