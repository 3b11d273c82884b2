"""A network of a cluster's own: a switch that this machine and the cluster's nodes are plugged into.

The switch is a bridge in a network namespace that one sleeping process holds. When that process ends, so do the bridge
and every cable, with this machine's addresses and routes on them; nothing of this machine's own network, firewall or
settings is touched.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess

from tests import debian
from tests.kubernetes import programs
from tests.kubernetes.daemons import Daemons
from tests.waiting import patient, until

_CLUSTERS = range(16)  # on one machine at the same time
_NODES = 8


class Network:
    """Addresses of one cluster among those on this machine, and the cables.

    ``host`` is this machine's address in the cluster: what listens there is reached by the API server and all Pods.
    The first cluster's services have the usual 10.96.0.1 and on.
    """

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._lock, self.index = _take_index()
        self.host = f"10.187.{self.index}.1"
        self.services = f"10.96.{self.index * 16}.0/20"
        self.api_service = f"10.96.{self.index * 16}.1"
        self.dns_service = f"10.96.{self.index * 16}.10"
        self.all_pods = f"10.188.{self.index * _NODES}.0/21"

    def node(self, number: int) -> str:
        """The address of a node."""
        assert 0 < number <= _NODES
        return f"10.187.{self.index}.{10 + number}"

    def pods(self, number: int) -> str:
        """The addresses of a node's Pods."""
        return f"10.188.{self.index * _NODES + number - 1}.0/24"

    def start(self) -> None:
        """Make the switch and plug this machine in."""
        self._daemons.launch("switch", ["unshare", "--net", "--", "sh", "-c", "echo made; exec sleep infinity"])
        until(lambda: "made" in self._daemons.log("switch"), 10)
        switch = str(self._daemons.pid("switch"))
        self._in_switch("link", "add", "switch", "type", "bridge")
        self._in_switch("link", "set", "switch", "up")
        cable = f"mkube{self.index}"
        ip("link", "add", cable, "type", "veth", "peer", "name", "host", "netns", switch)
        self._in_switch("link", "set", "host", "master", "switch", "up")
        ip("address", "add", f"{self.host}/24", "dev", cable)
        ip("link", "set", cable, "up")

    def plug(self, number: int, pid: int) -> None:
        """Plug in a node, whose namespace a process is in, and tell this machine the way to its Pods."""
        cable = f"node{number}"
        with contextlib.suppress(AssertionError):  # of a node that lost its power a moment ago
            self._in_switch("link", "delete", cable)
        self._in_switch("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._in_switch("link", "set", cable, "master", "switch", "up")
        inside = ("nsenter", "--target", str(pid), "--net", "--")
        ip("link", "set", "lo", "up", inside=inside)
        ip("address", "add", f"{self.node(number)}/24", "dev", "eth0", inside=inside)
        ip("link", "set", "eth0", "up", inside=inside)
        ip("route", "add", "default", "via", self.host, inside=inside)
        ip("route", "replace", self.pods(number), "via", self.node(number))
        ip("route", "replace", self.services, "via", self.node(number))  # any node's kube-proxy serves all

    def introduce(self, number: int, pid: int, other: int) -> None:
        """Tell a node the way to the Pods of another."""
        inside = ("nsenter", "--target", str(pid), "--net", "--")
        ip("route", "replace", self.pods(other), "via", self.node(other), inside=inside)

    def stop(self) -> None:
        """Give the addresses back; the switch ends with the other processes."""
        self._lock.close()

    def _in_switch(self, *words: str) -> None:
        ip(*words, inside=("nsenter", "--target", str(self._daemons.pid("switch")), "--net", "--"))


def ip(*words: str, inside: tuple[str, ...] = ()) -> None:
    """Run ``ip``; it must succeed."""
    program = programs.ip()
    argv = [*inside, str(program), *words]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=patient(30), env=debian.surroundings(program)
    )
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


def _take_index() -> tuple[socket.socket, int]:
    for index in _CLUSTERS:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0moorings-kubernetes-{index}")  # an abstract name: the kernel frees it with us
        except OSError:
            lock.close()
        else:
            return lock, index
    raise AssertionError(f"there are {len(_CLUSTERS)} clusters on this machine already")
