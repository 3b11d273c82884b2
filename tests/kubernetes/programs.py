"""Where a real Kubernetes comes from: ``scripts/kubernetes.sh`` builds it once, Debian's packages have the rest.

A folder in ``KUBEBUILDER_ASSETS`` (the convention of envtest) is taken for what it has: etcd and any program of
Kubernetes. What it lacks is ours, of 1.20.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

from tests import debian
from tests.waiting import patient

BUILD_S = 1800.0  # once on a machine, with two busy cores
_SCRIPT = debian.ROOT / "scripts" / "kubernetes.sh"
_ENV = dict(os.environ)  # as it was for whoever runs the tests: a test has no HOME of theirs, and the cache is there
_NODE_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iptables", "conntrack")


@functools.cache
def cache_folder() -> Path:
    """The folder that keeps what takes long to make, shared by all checkouts."""
    return kubernetes().parent


@functools.cache
def kubernetes() -> Path:
    """The folder with kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl.

    Raises:
        AssertionError: they cannot be had here.
    """
    return Path(_run())


@functools.cache
def helm() -> Path:
    """A helm."""
    return Path(_run("--helm"))


def today(name: str) -> Path:
    """What Debian has of today's Kubernetes: ``kubectl``, and ``kube-apiextensions-apiserver``, which knows CEL rules.

    Raises:
        AssertionError: it cannot be had here. It is tried once: the build takes minutes.
    """
    found = _try_today()
    assert found.returncode == 0, f"nothing of today's Kubernetes for this test:\n{found.stderr}"
    return Path(found.stdout.strip()) / name


def why_not_today() -> str:
    """Why there is nothing of today's Kubernetes here, in a line; empty: it is there."""
    found = _try_today()
    errors = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    return "" if found.returncode == 0 else (errors or [f"exit {found.returncode}"])[-1]


@functools.cache
def _try_today() -> subprocess.CompletedProcess[str]:
    argv = [str(_SCRIPT), "--today"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=_ENV, timeout=patient(BUILD_S))


def kube(name: str) -> Path:
    """A program of Kubernetes, by its name."""
    return _asset(name) or kubernetes() / name


def given() -> str:
    """The folder with an API server that whoever runs the tests has brought; empty: none."""
    found = _asset("kube-apiserver")
    return str(found.parent) if found is not None else ""


def release(name: str) -> tuple[int, int]:
    """Of which Kubernetes a daemon is: 1, 20."""
    return _release_of(kube(name))


@functools.cache
def _release_of(program: Path) -> tuple[int, int]:
    said = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=True, timeout=patient(60)
    ).stdout
    found = re.search(r"v(\d+)\.(\d+)\.", said)
    assert found is not None, f"{program} does not tell its version: {said}"
    return int(found[1]), int(found[2])


def etcd() -> Path:
    """The server of etcd; to be run with ``debian.surroundings``."""
    return _asset("etcd") or debian.program("etcd", "etcd-server")


def busybox() -> Path:
    """A busybox that needs no library."""
    return debian.unpacked("busybox", "busybox-static")


@functools.cache
def node_root() -> Path:
    """The folder below which containerd, runc, the CNI plugins, iptables and conntrack lie as Debian has them."""
    return debian.folder_of(*_NODE_PACKAGES)


def node_env(bin: Path) -> dict[str, str]:  # noqa: A002  it is a bin folder
    """The variables for a node's programs; ``bin`` is a folder of one's own for the names Debian makes on install."""
    root = node_root()
    bin.mkdir(parents=True, exist_ok=True)
    for name in ("iptables", "ip6tables"):
        for end in ("", "-save", "-restore"):
            link = bin / f"{name}{end}"
            if not link.is_symlink():
                link.symlink_to(root / "usr" / "sbin" / "xtables-nft-multi")  # it looks at the name it is called by
    plugins = next(iter(root.glob("usr/lib/*/xtables")))
    return {
        "PATH": f"{bin}:{root}/usr/sbin:{root}/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LD_LIBRARY_PATH": debian.libraries(root),
        "XTABLES_LIBDIR": str(plugins),
        "AWS_EC2_METADATA_DISABLED": "true",  # kubelet 1.20 looks for a cloud's credentials
    }


@functools.cache
def ip() -> Path:
    """The command ``ip``; to be run with ``debian.surroundings``."""
    return debian.program("ip", "iproute2")


def prepare() -> None:
    """Make everything that takes minutes, before a test's clock runs."""
    kubernetes()
    helm()
    etcd()
    busybox()
    node_root()


def _asset(name: str) -> Path | None:
    found = Path(_ENV.get("KUBEBUILDER_ASSETS") or "/nowhere") / name
    return found if found.exists() else None


def _run(*options: str) -> str:
    done = subprocess.run(
        [_SCRIPT, *options],
        stdout=subprocess.PIPE,
        stderr=None,
        text=True,
        check=False,
        env=_ENV,
        timeout=patient(BUILD_S),
    )
    assert done.returncode == 0, f"{_SCRIPT.name} {' '.join(options)} failed; what it said is above"
    return done.stdout.strip()
