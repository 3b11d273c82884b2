"""A story played on a real cluster with a node that runs real Pods, and what is seen at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from moorings.drivers.simulated.partition import SimulatedPartition
from tests.kubernetes import images
from tests.kubernetes.api import KubernetesError
from tests.kubernetes.cluster import KubectlError, KubernetesCluster, Obj, new_folder
from tests.kubernetes.kills.judge import Seen
from tests.kubernetes.kills.story import BEAT_S, Job, Kill, Kind, Story, Victim
from tests.kubernetes.site import JOBS, Site, ipu_site, template
from tests.lives import Life, made_by, orders, parse_diary
from tests.waiting import patient, until

N_IPUS = 64
PROVISION_S, REMOVE_S = 0.05, 0.05
SETTLE_S = 240.0  # kubelet starts some Pods a second
GRACE_S = 2
AWAY = (OSError, KubernetesError, KubectlError, AssertionError)  # the API server, or what needs it to start
OPERATORS = ("operator", "other")
# busybox has no clock finer than a second; /proc/uptime has hundredths.
LIVE = f"""
read -r id < /proc/sys/kernel/random/uuid
tell() {{
    read -r up rest < /proc/uptime
    echo "$HOSTNAME 0 $HOSTNAME/$id $1 $up ${{MOORINGS_PARTITION_ID:--}} ${{MOORINGS_DEVICES:--}}" >> "/diaries/$NAME"
}}
[ -z "$STUBBORN" ] || trap '' TERM
tell begin
for beat in $(seq "$BEATS"); do sleep {BEAT_S}; tell alive; done
if [ -n "$FAILS_ONCE" ] && [ ! -e "/diaries/.$NAME" ]; then touch "/diaries/.$NAME"; exit 1; fi
tell end
"""
_VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: diaries}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {{path: {path}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: diaries, namespace: {namespace}}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: diaries
  resources: {{requests: {{storage: 1Gi}}}}
"""
LIVES = ["sh", "-c", LIVE]


class Stage:
    """A site on a cluster with a node; programs write diaries in a folder of this machine."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._home = site.cluster.make_namespace()
        self._jobs = f"{JOBS}/namespaces/{self._home}/ipujobs"
        self._diaries = site.folder / "diaries"
        self._diaries.mkdir()
        self._diaries.chmod(0o1777)
        self._orders: dict[tuple[int, float], SimulatedPartition] = {}
        site.cluster.apply(_VOLUME.format(path=self._diaries, namespace=self._home))

    def play(self, story: Story) -> Seen:
        """All of it, until nothing happens any more."""
        begun = time.monotonic()

        def at(moment_s: float) -> None:
            time.sleep(max(0.0, begun + moment_s - time.monotonic()))

        def live(job: Job) -> None:
            at(job.at_s)
            until(lambda: self._make(job), 120, not_yet=AWAY)
            if job.delete_after_s is not None:
                time.sleep(job.delete_after_s)
                until(lambda: self._delete(job.name), 120, not_yet=AWAY)

        def kill(victim: Victim) -> None:
            for one in story.kills:
                if one.victim is victim:
                    at(one.at_s)
                    self._kill(one)

        with ThreadPoolExecutor(16) as makers, ThreadPoolExecutor(len(Victim)) as killers:
            going = [killers.submit(kill, victim) for victim in Victim]
            going += [makers.submit(live, job) for job in story.jobs]
            for done in going:
                done.result()
        return self._look(story)

    # -- what happens ------------------------------------------------------------------------------------------------

    def _make(self, job: Job) -> bool:
        env = {"NAME": job.name, "BEATS": str(job.beats), "STUBBORN": "yes" if job.stubborn else ""}
        env["FAILS_ONCE"] = "yes" if job.kind is Kind.FAILS_ONCE else ""
        spec: dict[str, Any] = {"ipusPerJobInstance": str(job.size)}
        command: list[str] = LIVES
        if job.kind is Kind.TRAINING:
            # Workers that stay until their job is deleted would fill the node: it takes 250 Pods.
            spec |= {"workerPerJobInstance": "2", "launcher": {"command": LIVES}, "cleanPodPolicy": "Workers"}
            command = []
        elif job.kind is Kind.SEVERAL:
            spec |= {"jobInstances": 2}
        elif job.kind is Kind.FAILS_ONCE:
            spec |= {"restartPolicy": {"type": "OnFailure"}}
        volume = {"name": "diaries", "persistentVolumeClaim": {"claimName": "diaries"}}
        pod = template(*command, image=images.busybox().name, volumes=[volume], terminationGracePeriodSeconds=GRACE_S)
        (container,) = pod["spec"]["containers"]
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
        container["volumeMounts"] = [{"name": "diaries", "mountPath": "/diaries"}]
        try:
            self.site.submit(self._home, job.name, workers={"template": pod}, **spec)
        except KubernetesError as error:
            if error.status != 409:  # else an answer was lost
                raise
        return True

    def _delete(self, name: str) -> bool:
        try:
            self.site.delete(self._home, name)
        except KubernetesError as error:
            if error.status != 404:
                raise
        return True

    def _kill(self, kill: Kill) -> None:
        site = self.site
        match kill.victim:
            case Victim.OPERATOR:
                name = max(OPERATORS, key=lambda one: site.log(one).rfind("election.won") >= 0 and _leads(site, one))
                site.kill_operator(name)
                time.sleep(kill.away_s)
                until(lambda: self._start_operator(name), 120, not_yet=AWAY)
            case Victim.PROXY:
                site.kill_proxy()
                time.sleep(kill.away_s)
                until(self._start_proxy, 120, not_yet=AWAY)
            case Victim.API_SERVER:
                site.cluster.kill_api_server()
                time.sleep(kill.away_s)
                site.cluster.start_api_server()
            case Victim.CONTROLLER:
                site.pod.kill()
                self._orders |= orders(site.pod.data)  # the next one compacts the journal
                time.sleep(kill.away_s)
                site.pod.start()

    def _start_operator(self, name: str) -> bool:
        self.site.start_operator(name, leads=False)
        return True

    def _start_proxy(self) -> bool:
        self.site.start_proxy()
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def _look(self, story: Story) -> Seen:
        wanted = {job.name for job in story.jobs if job.delete_after_s is None}
        gives_up = time.monotonic() + patient(SETTLE_S)
        statuses = self._statuses()
        while not _over(statuses, wanted) and time.monotonic() < gives_up:
            time.sleep(1)
            statuses = self._statuses()
        left = self._left()
        until(lambda: self.site.cluster.api("DELETE", self._jobs), 120, not_yet=AWAY)
        with suppress(AssertionError):
            until(lambda: not self._rest(), SETTLE_S, not_yet=AWAY)
        left += self._rest()
        made = made_by(self._orders | orders(self.site.pod.data), PROVISION_S, REMOVE_S)
        offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        lives: list[Life] = []
        for diary in sorted(self._diaries.glob("k*")):
            lives += parse_diary(diary.name, diary.read_text())
        lives = [replace(life, begun=life.begun + offset, last=life.last + offset) for life in lives]
        return Seen(statuses, lives, made, left)

    def _statuses(self) -> dict[str, Obj]:
        with suppress(*AWAY):
            items = self.site.cluster.api("GET", self._jobs)["items"]
            return {one["metadata"]["name"]: one.get("status", {}) for one in items}
        return {}

    def _left(self) -> list[str]:
        """Partitions and claims of jobs that have ended; they are given back soon after."""
        with suppress(AssertionError):
            until(lambda: not self._held(), 30, not_yet=AWAY)
        return self._held()

    def _held(self) -> list[str]:
        pod = self.site.pod
        held = [f"partition {one['name']} is {one['state']}" for one in pod.partitions()]
        return held + [f"claim {one['id']} is {one['state']}" for one in pod.claims()]

    def _rest(self) -> list[str]:
        """What is left of jobs that are gone."""
        cluster = self.site.cluster
        found = [f"IPUJob {name} is there" for name in self._statuses()]
        for kind in ("pods", "serviceaccounts", "roles", "rolebindings", "configmaps", "services"):
            labelled = cluster.list(kind, self._home, "graphcore.ai/job-name")
            found += [f"{kind} {one['metadata']['name']} is left" for one in labelled]
        return [*found, *self._held()]


def _over(statuses: dict[str, Obj], wanted: set[str]) -> bool:
    ended = {name for name, status in statuses.items() if status.get("status") in ("Completed", "Failed")}
    return statuses.keys() == ended == wanted


def _leads(site: Site, name: str) -> bool:
    said = [line for line in site.log(name).splitlines() if "election." in line]
    return bool(said) and "election.won" in said[-1]


@contextmanager
def staged(sizes: tuple[int, ...] = (N_IPUS,)) -> Iterator[Stage]:
    """A cluster with a node, a controller, a proxy and two operators."""
    with KubernetesCluster(new_folder()) as cluster:
        node = cluster.with_node()
        node.import_image(images.busybox())
        node.import_image(images.launcher())
        cluster.kubectl("label", "node", node.name, "ipunode=pod1", "--overwrite")
        flags = ("--lease-s=4", f"--launcher-image={images.launcher().name}", "--launcher-image-pull-policy=Never")
        with ipu_site(cluster, sizes=sizes, flags=flags) as site:
            site.start_operator("other", leads=False)
            yield Stage(site)
