"""A node of a cluster on this machine: containerd, kubelet and kube-proxy as on any other, in namespaces of their own.

Its processes, network, firewall rules and mounts are a world that one process holds: to kill that one is a power cut,
and leaves nothing on this machine but empty cgroups, which the cluster's guard removes. What kubelet sets of the whole
kernel (overcommitment, panic) it finds set already, in files laid over those of /proc.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.kubernetes import images, programs
from tests.kubernetes.daemons import START_S
from tests.waiting import patient, until

if TYPE_CHECKING:
    from tests.kubernetes.cluster import KubernetesCluster

_IMPORT_S = 120.0

# As process 1 of the node: reaps whoever is left, and is the node's life.
_INIT = """
echo made
while :; do sleep 3600 & wait; done
"""

# In the node's own view of the file system, before anything runs: $1 its folder, $2 its name, $3 its cgroup.
_FURNISH = """
mount --make-rshared /
mkdir -p "$1/var-log" "$1/kernel"
mount --bind "$1/var-log" /var/log          # kubelet's folder of Pods' logs is not to be chosen
mount -t tmpfs -o mode=755 tmpfs /run       # sockets of shims, namespaces of Pods
mkdir /run/lock
lay() { echo "$2" > "$1/kernel/value-${3##*/}"; mount --bind "$1/kernel/value-${3##*/}" "$3"; }
lay "$1" 1 /proc/sys/vm/overcommit_memory
lay "$1" 0 /proc/sys/vm/panic_on_oom
lay "$1" 10 /proc/sys/kernel/panic
lay "$1" 1 /proc/sys/kernel/panic_on_oops
lay "$1" 1000000 /proc/sys/kernel/keys/root_maxkeys
lay "$1" 25000000 /proc/sys/kernel/keys/root_maxbytes
echo 1 > /proc/sys/net/ipv4/ip_forward
hostname "$2"
printf '127.0.0.1 localhost\\n%s %s\\n' "$4" "$2" > "$1/hosts"
mount --bind "$1/hosts" /etc/hosts
printf 'nameserver %s\\n' "$5" > "$1/resolv.conf"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo '+cpuset +cpu +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control
    mkdir -p "/sys/fs/cgroup$3"
    echo '+cpuset +cpu +memory +pids' > "/sys/fs/cgroup$3/cgroup.subtree_control"
else
    for hierarchy in /sys/fs/cgroup/*/; do
        [ -e "$hierarchy/tasks" ] || continue
        mkdir -p "$hierarchy$3"
        for value in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy/$value" ] || cat "$hierarchy/$value" > "$hierarchy$3/$value"
        done
    done
fi
"""


class Node:
    """A node; the cluster's ``with_node`` makes it."""

    def __init__(self, cluster: KubernetesCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"node{number}"
        self.address = cluster.network.node(number)
        self.folder = cluster.folder / self.name
        self.bin = self.folder / "bin"
        self.env = programs.node_env(self.bin)
        # Below the cluster's name in every hierarchy: its guard finds it there.
        self._cgroup = f"/{cluster.folder.name}-{self.name}"
        self._socket = self.folder / "containerd.sock"
        self._imported: dict[str, images.Image] = {}
        self._layers: set[Path] = set()
        cluster.issue_for_node(self.name, self.address)

    @property
    def is_up(self) -> bool:
        """Whether it has power."""
        return self.cluster.daemons.runs(self.name)

    def start(self) -> None:
        """Switch it on; return when it is Ready, with its images."""
        daemons, network = self.cluster.daemons, self.cluster.network
        self.folder.mkdir(exist_ok=True)
        world = ["--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        seen = daemons.log(self.name).count("made")
        daemons.launch(self.name, ["unshare", *world, "--propagation", "private", "--", "sh", "-c", _INIT])
        daemons.wait(self.name, lambda: daemons.log(self.name).count("made") > seen)
        self._pid = self._find_init()
        network.plug(self.number, self._pid)
        for other in self.cluster.nodes:
            if other is not self and other.is_up:
                network.introduce(self.number, self._pid, other.number)
                network.introduce(other.number, other._pid, self.number)
        self.run(
            "sh",
            "-euc",
            _FURNISH,
            "furnish",
            str(self.folder),
            self.name,
            self._cgroup,
            self.address,
            network.dns_service,
        )
        self._start_containerd()
        self.import_image(images.pause())
        self.start_kubelet()
        self._wait(lambda: self.cluster.api("GET", f"/api/v1/nodes/{self.name}"))
        self._start_kube_proxy()  # which looks for its node at once, and then seldom
        self._wait(self._is_ready)
        self._wait(self._has_rules)

    def kill(self) -> None:
        """A power cut: every process in it is gone at once. The API server has not noticed yet; containers are lost.

        This machine reaches Services by the last node that was started, as long as that one is up.
        """
        for part in ("", "-kubelet", "-kube-proxy", "-containerd"):
            self.cluster.daemons.kill(f"{self.name}{part}")

    def start_kubelet(self) -> None:
        """Start kubelet."""
        pair = (self.cluster.folder / "pki" / f"{self.name}.{end}" for end in ("crt", "key"))
        file = self.folder / "kubelet.yaml"
        file.write_text(yaml.safe_dump(self._build_kubelet_configuration(*pair)))
        flags = {
            "config": file,
            "kubeconfig": self.cluster.folder / f"{self.name}.kubeconfig",
            "root-dir": self.folder / "kubelet",
            "cert-dir": self.folder / "kubelet-pki",
            "hostname-override": self.name,
            "node-ip": self.address,
            "container-runtime-endpoint": f"unix://{self._socket}",
            "v": 2,
        }
        if programs.release("kubelet") < (1, 24):
            flags |= {"container-runtime": "remote", "network-plugin": "cni"}
        self._launch("kubelet", [programs.kube("kubelet"), *(f"--{name}={value}" for name, value in flags.items())])

    def kill_kubelet(self) -> None:
        """SIGKILL kubelet: its Pods run on, and nobody reports of them."""
        self.run("sh", "-c", "kill -KILL $(pidof kubelet)")
        self.cluster.daemons.kill(f"{self.name}-kubelet")

    def import_image(self, image: images.Image) -> None:
        """Put an image on the node; one that is there already as it is costs nothing."""
        if self._imported.get(image.name) == image:
            return
        words = self._build_words([str(self._program("ctr")), *self._ctr(), "images", "import", "-"])
        loading = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env
        )
        assert loading.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it says why
            image.write_archive(loading.stdin, self._layers)
        out, _ = loading.communicate(timeout=patient(_IMPORT_S))
        assert loading.returncode == 0, f"{image.name} was not imported: {out.decode(errors='replace')}"
        self._imported[image.name] = image
        self._layers.update(image.layers)

    def import_archive(self, file: Path) -> None:
        """Put the images of a docker-archive or an OCI archive on the node."""
        words = (str(self._program("ctr")), *self._ctr(), "images", "import", str(file))
        self.run(*words, timeout=_IMPORT_S)

    def run(self, *argv: str, timeout: float = 30) -> str:
        """What a command prints that runs as on the node itself; it must succeed."""
        done = subprocess.run(
            self._build_words(argv), capture_output=True, text=True, check=False, timeout=patient(timeout), env=self.env
        )
        assert done.returncode == 0, f"{argv}: exit {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def log(self, daemon: str, characters: int = 4000) -> str:
        """The end of what containerd, kubelet or kube-proxy said."""
        return self.cluster.daemons.log(f"{self.name}-{daemon}", characters)

    # -- how it is done ----------------------------------------------------------------------------------------------

    def _start_containerd(self) -> None:
        root = programs.node_root()
        cni = self.folder / "cni"
        cni.mkdir(exist_ok=True)
        (cni / "10-moorings.conflist").write_text(json.dumps(self._build_network()))
        file = self.folder / "containerd.toml"
        file.write_text(_build_containerd_configuration(self.folder, root, self._socket))
        self._launch("containerd", [self._program("containerd"), "--config", file])
        self.cluster.daemons.wait(
            f"{self.name}-containerd", lambda: self._socket.exists() and self._containerd_answers()
        )

    def _start_kube_proxy(self) -> None:
        flags = {
            "kubeconfig": self.cluster.folder / "kube-proxy.kubeconfig",
            "hostname-override": self.name,
            "proxy-mode": "iptables",
            "cluster-cidr": self.cluster.network.all_pods,  # who is not in it, this machine too, is answered through us
            "iptables-min-sync-period": "100ms",
            "conntrack-max-per-core": 0,  # as the kernel has it
            "conntrack-min": 0,
            "conntrack-tcp-timeout-established": "0s",
            "conntrack-tcp-timeout-close-wait": "0s",
        }
        words = [programs.kube("kube-proxy"), *(f"--{name}={value}" for name, value in flags.items())]
        self._launch("kube-proxy", words)

    def _containerd_answers(self) -> bool:
        words = self._build_words([str(self._program("ctr")), *self._ctr(), "version"])
        return (
            subprocess.run(words, capture_output=True, check=False, timeout=patient(30), env=self.env).returncode == 0
        )

    def _is_ready(self) -> bool:
        found = self.cluster.api("GET", f"/api/v1/nodes/{self.name}")
        ready = [each for each in found["status"]["conditions"] if each["type"] == "Ready"]
        taints = [each["key"] for each in found["spec"].get("taints", ())]
        return ready[0]["status"] == "True" and taints == []

    def _has_rules(self) -> bool:
        with urllib.request.urlopen(f"http://{self.address}:10256/healthz", timeout=patient(5)) as answer:
            return bool(answer.status == 200)

    def _wait(self, true: Callable[[], object]) -> None:
        self.cluster.wait(true, START_S, what=lambda: f"{self.log('kubelet')}\n{self.log('kube-proxy')}")

    def _launch(self, name: str, words: Sequence[object]) -> None:
        self.cluster.daemons.launch(f"{self.name}-{name}", self._build_words(map(str, words)), self.env)

    def _build_words(self, argv: Iterable[str]) -> list[str]:
        return ["nsenter", "--target", str(self._pid), "--net", "--pid", "--mount", "--uts", "--ipc", "--", *argv]

    def _ctr(self) -> tuple[str, ...]:
        return ("--address", str(self._socket), "--namespace", "k8s.io")

    def _program(self, name: str) -> Path:
        return programs.node_root() / "usr" / "bin" / name

    def _find_init(self) -> int:
        holder = self.cluster.daemons.pid(self.name)
        return int(until(lambda: Path(f"/proc/{holder}/task/{holder}/children").read_text().split(), 10)[0])

    def _build_network(self) -> Mapping[str, Any]:
        pods = self.cluster.network.pods(self.number)
        ipam = {
            "type": "host-local",
            "dataDir": "/run/ipam",
            "ranges": [[{"subnet": pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        return {
            "cniVersion": "0.4.0",
            "name": "moorings",
            "plugins": [
                {"type": "ptp", "ipMasq": False, "ipam": ipam},  # routed: no module for filtering bridges is needed
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def _build_kubelet_configuration(self, certificate: Path, key: Path) -> Mapping[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.cluster.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "address": self.address,
            "healthzBindAddress": self.address,
            "readOnlyPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self._cgroup,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "clusterDomain": "cluster.local",
            "clusterDNS": [self.cluster.network.dns_service],
            "resolvConf": str(self.folder / "resolv.conf"),
            "evictionHard": dict.fromkeys(
                ("memory.available", "nodefs.available", "imagefs.available", "nodefs.inodesFree"), "0%"
            ),
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 5,
            "syncFrequency": "5s",
            "serializeImagePulls": False,
            "kubeAPIQPS": 200,  # by itself 5, and 40 Pods take half a minute
            "kubeAPIBurst": 400,
            "eventRecordQPS": 200,
            "eventBurst": 400,
            "maxPods": 240,
        }


def _build_containerd_configuration(folder: Path, root: Path, socket: Path) -> str:
    filesystem = subprocess.run(
        ["stat", "--file-system", "--format", "%T", folder], capture_output=True, text=True, check=True
    ).stdout.strip()
    snapshotter = "native" if filesystem.startswith("overlay") else "overlayfs"  # there is no overlay on an overlay
    return f"""\
version = 2
root = "{folder}/containerd"
state = "/run/containerd-state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.internal.v1.opt",
]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.pause().name}"
  disable_apparmor = true
  restrict_oom_score_adj = true  # root without CAP_SYS_RESOURCE may not lower it
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{root}/usr/sbin/runc"
        SystemdCgroup = false
"""
