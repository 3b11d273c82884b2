"""A cluster with our SPANK plugin, compiled for it, and our job_submit.lua."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.debian import ROOT
from tests.slurm.cluster import SlurmCluster

SOURCES = ROOT / "deploy" / "slurm"
TWINS = (1, 2, 4, 8, 16, 32, 64)
LICENSES = ",".join(["ipu:64", *(f"ipu_{twin}:64" for twin in TWINS), "moorings_gate:1", "matlab:5", "fluent:5"])
LIMITS = "return { max = 256, sizes = { 1, 2, 4, 8, 16, 32, 64, 128 }, domain = 64, admins = { 0 } }\n"
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wpedantic", "-Werror")


def build_plugin(cluster: SlurmCluster, source: Path = SOURCES / "moorings_spank.c") -> Path:
    """The plugin for this cluster's Slurm, beside its slurm.conf."""
    plugin = cluster.etc / "moorings_spank.so"
    words = ["gcc", "-std=c99", *WARNINGS, "-shared", "-fPIC", "-O2", f"-I{cluster.programs.headers}"]
    words += [f"-I{SOURCES}", "-o", str(plugin), str(source), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return plugin


def plug(cluster: SlurmCluster, agent: str, wait_s: int = 30, extra: str = "") -> None:
    """Set the plugin up; every command and step reads this again."""
    plugin, socket = cluster.etc / "moorings_spank.so", cluster.munge_socket
    words = f"agent={agent} max=256 wait={wait_s} munge_socket={socket} run_dir={run_dir(cluster)} {extra}"
    line = f"optional {plugin} {words}\n"
    new = cluster.write_conf("plugstack.conf.new", line)
    new.rename(cluster.etc / "plugstack.conf")  # at once: a command may be reading it


def run_dir(cluster: SlurmCluster) -> Path:
    """Where its nodes note which jobs have their partition."""
    return cluster.folder / "run" / "moorings"


def copy_lua(cluster: SlurmCluster) -> None:
    """The job_submit plugin and its limits, beside slurm.conf."""
    for name in ("job_submit.lua", "moorings_submit.lua"):
        shutil.copy(SOURCES / name, cluster.etc / name)
    cluster.write_conf("moorings_limits.lua", LIMITS)
