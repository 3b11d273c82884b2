"""The engine ``kubernetes`` keeps the contract of every engine, with real Pods that have IPUs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.engine.engine import KubernetesEngine
from moorings.kubernetes.engine.settings import KubernetesEngineSettings, Volume
from moorings.kubernetes.ipujob.types import IPU_JOB
from moorings.kubernetes.kube.api import KubeApi, KubeError, ResourceType
from moorings.kubernetes.kube.client import connect
from moorings.kubernetes.kube.kubeconfig import load_credentials
from moorings.kubernetes.kube.pod_streams import PodStreams
from moorings.ports.engine import Engine, RunSubmission
from moorings.ports.store import Epoch
from moorings.testing.engine_suite import (
    PATIENCE_S,
    READY,
    Command,
    EngineRig,
    EngineSuite,
    SuitePrograms,
    error_of,
    make_order,
    observe_run,
    open_engine,
    read_output,
    wait_for_end,
    wait_for_output,
    wait_for_phase,
    without_devices,
)
from moorings.workloads.jobs import Accelerators
from moorings.workloads.runs import EndReason, RunPhase
from tests.kubernetes import images
from tests.kubernetes.cluster import KubernetesCluster, new_folder
from tests.kubernetes.site import ROOT, Site, ipu_site
from tests.unit.local.local_rig import WallClock

PAGE = ROOT / "docs" / "how-to" / "kubernetes-runs.md"
RUNNER = "moorings-runs"

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with KubernetesCluster(new_folder()) as cluster:
        node = cluster.with_node()
        node.import_image(images.busybox())
        cluster.kubectl("label", "node", node.name, "ipunode=pod1")  # the pool is reached from here
        with ipu_site(cluster, flags=["--privileged"]) as made:
            yield made


class PodPrograms(SuitePrograms):
    """The same; but Pods begin one after the other, and one that fails at once keeps others from beginning at all."""

    def fails_in(self, rank: int, code: int) -> Command:
        """Ends with that code when the others have begun, who tell so in the folder that they share."""
        mark = '"$MOORINGS_RUN_ID"'
        wait = f'until [ "$(ls | grep -c {mark})" -ge $((WORLD_SIZE - 1)) ]; do sleep 0.1; done'
        return self.shell(
            f'if [ "$RANK" = {rank} ]; then {wait}; exit {code}; fi; : > {mark}.$RANK; echo ready; exec sleep 3600'
        )


class Imaged:
    """An engine whose jobs all have an image, which the suite's have not."""

    def __init__(self, engine: KubernetesEngine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    async def submit(self, order: RunSubmission) -> str:
        return await self.engine.submit(replace(order, job=replace(order.job, image=images.busybox().name)))


class KubernetesRig:
    """A namespace, a folder that Pods share, and engines for it."""

    programs = PodPrograms()

    def __init__(self, site: Site, runner: Path) -> None:
        self.site = site
        self.cluster = site.cluster
        self.kubeconfig = str(runner)
        self.kube: Callable[[KubeApi], Any] = lambda kube: kube  # what stands between the engines and the API server
        self.namespace = site.cluster.make_namespace("runs")
        self.installation = uuid4().hex[:12]
        self.folder = site.folder / self.namespace
        self.work = self.folder / "work"
        self.runs = self.folder / "runs"
        for made in (self.folder, self.work, self.runs):
            made.mkdir()
        give_rights(site.cluster, self.namespace)
        self.settings = KubernetesEngineSettings(
            namespace=self.namespace,
            volumes=(Volume(str(self.work), host_path=str(self.work)),),
            request_cpus=False,
        )

    @property
    def workdir(self) -> str:
        return str(self.work)

    async def open(self) -> Engine:
        path = self.kubeconfig
        engine = KubernetesEngine(
            self.settings,
            self.runs,
            self.installation,
            self.kube(connect({}, path=path)),
            PodStreams(load_credentials({}, path=path)),
            WallClock(),
        )
        return Imaged(engine)  # type: ignore[return-value]

    def end(self) -> None:
        self.site.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")


def give_rights(cluster: KubernetesCluster, namespace: str) -> None:
    """The rights that the page tells admins to give, and no others."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    role = yaml.safe_load(text)
    subject = {"kind": "User", "name": RUNNER, "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": "rbac.authorization.k8s.io"}
    binding = {**role, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}
    del binding["rules"]
    cluster.apply(yaml.safe_dump_all([role, binding]), "-n", namespace)


@pytest.fixture(scope="module")
def runner(site: Site) -> Path:
    """The kubeconfig of a user without any right of its own."""
    return site.cluster.make_kubeconfig(RUNNER)


@pytest.fixture
def rig(site: Site, runner: Path) -> Iterator[KubernetesRig]:
    made = KubernetesRig(site, runner)
    yield made
    made.end()


class TestKubernetesEngine(EngineSuite):
    async def test_a_job_without_devices_runs_with_several_tasks(self, rig: EngineRig) -> None:
        """It does not: an IPUJob has at least one IPU."""
        order = without_devices(make_order(rig.programs.exits(0), rig.workdir))
        async with open_engine(rig) as engine:
            with pytest.raises(MooringsError) as caught:
                engine.check_job(order.job)
        assert (caught.value.code, bool(caught.value.hint)) == ("engine.rejected", True)


class Passing:
    """An API server that is asked through us."""

    def __init__(self, kube: KubeApi) -> None:
        self.through = kube

    def __getattr__(self, name: str) -> Any:
        return getattr(self.through, name)


class Losing(Passing):
    """Does the first call of one sort, and loses the answer."""

    def __init__(self, kube: KubeApi, lost: list[tuple[str, str]]) -> None:
        super().__init__(kube)
        self.lost = lost

    async def _do(self, call: str, kind: ResourceType, *words: Any) -> Any:
        answer = await getattr(self.through, call)(kind, *words)
        if (call, kind.name) in self.lost:
            self.lost.remove((call, kind.name))
            raise KubeError(0, "Timeout", "the answer was lost")
        return answer

    async def create(self, kind: ResourceType, *words: Any) -> Any:
        return await self._do("create", kind, *words)

    async def patch(self, kind: ResourceType, *words: Any) -> Any:
        return await self._do("patch", kind, *words)


@pytest.mark.parametrize("call", [("create", "IPUJob"), ("create", "Secret"), ("patch", "IPUJob")])
async def test_an_answer_that_is_lost_starts_nothing_twice(rig: KubernetesRig, call: tuple[str, str]) -> None:
    lost = [call]
    rig.kube = partial(Losing, lost=lost)
    order = make_order(rig.programs.shell("echo once; mktemp mark.XXXXXX"), rig.workdir)
    async with open_engine(rig) as engine:
        error = await error_of(engine.submit(order))
        assert (error.code, error.retryable) == ("engine.unavailable", True)
        assert not lost
    async with open_engine(rig) as engine:  # a controller that was killed there knows no more
        reference = await engine.submit(order)
        assert reference == f"{rig.namespace}/{order.run}"
        assert (await wait_for_end(engine, order.run)).exit_code == 0
        assert (await read_output(engine, order.run)).startswith(b"once\n")
        assert await engine.submit(order) == reference
    assert len(list(rig.work.glob("mark.*"))) == 1


class Pausing(Passing):
    """Stands still before a job comes to life."""

    def __init__(self, kube: KubeApi) -> None:
        super().__init__(kube)
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def patch(self, kind: ResourceType, name: str, body: Any, *words: Any) -> Any:
        if kind is IPU_JOB and "spec" in body:
            self.reached.set()
            await self.goes_on.wait()
        return await self.through.patch(kind, name, body, *words)


async def test_a_leader_that_stood_still_brings_nothing_to_life_after_another_began(rig: KubernetesRig) -> None:
    order = replace(make_order(rig.programs.prints("ran"), rig.workdir), epoch=Epoch(6))
    async with open_engine(rig) as new:
        paused: list[Pausing] = []

        def pausing(kube: KubeApi) -> Any:
            paused.append(Pausing(kube))
            return paused[0]

        rig.kube = pausing
        async with open_engine(rig) as old:
            await old.fence_below(Epoch(6))
            submitting = asyncio.create_task(error_of(old.submit(order)))
            await paused[0].reached.wait()
            await new.fence_below(Epoch(7))
            paused[0].goes_on.set()
            error = await submitting
            assert (error.code, error.retryable) == ("engine.unavailable", True)
            assert "another controller leads by now" in error.detail
        assert rig.site.job(rig.namespace, order.run)["spec"]["jobInstances"] == 0
        await new.submit(replace(order, epoch=Epoch(7)))
        assert (await wait_for_end(new, order.run)).exit_code == 0


async def test_a_job_that_somebody_deletes_in_kubernetes_is_cancelled_and_its_output_stays(rig: KubernetesRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, READY)
        rig.site.delete(rig.namespace, order.run)
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code, end.task_codes) == (EndReason.CANCELLED, 143, (143,))
        assert end.detail == f"IPUJob {rig.namespace}/{order.run} was deleted in Kubernetes"
        assert await read_output(engine, order.run) == READY + b"\n"


async def test_one_that_waits_says_why_and_is_cancelled_without_having_run(rig: KubernetesRig) -> None:
    whole = Accelerators(size=16)
    blocker, order = (make_order(rig.programs.runs_until_stopped(), rig.workdir) for _ in range(2))
    blocker, order = (replace(one, job=replace(one.job, accelerators=whole)) for one in (blocker, order))
    async with open_engine(rig) as engine:
        await engine.submit(blocker)
        await wait_for_phase(engine, blocker.run, RunPhase.RUNNING)
        reference = await engine.submit(order)
        async with asyncio.timeout(PATIENCE_S):
            while "waiting for a partition of 16 IPUs" not in (seen := await observe_run(engine, order.run)).reason:
                await engine.wait_for_change()
        assert (seen.phase, seen.reference) == (RunPhase.STARTING, reference)
        await engine.cancel(order.run, "enough")
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code, end.task_codes) == (EndReason.CANCELLED, 143, (None,))
        assert end.detail == "enough"
        assert await read_output(engine, order.run) == b""
        await engine.cancel(blocker.run, "seen enough")
        await wait_for_end(engine, blocker.run)


async def test_a_task_has_the_jobs_variables_as_they_are_and_pods_do_not_show_them(rig: KubernetesRig) -> None:
    order = make_order(("/bin/env", "-0"), rig.workdir)
    given = {"PATH": "/usr/bin:/bin", "SECRET": "a 'quoted' $word $(HOME) $$\nand a line", "EMPTY": ""}
    order = replace(order, job=replace(order.job, environment=given, checkpoint_directory="/work/checkpoints"))
    async with open_engine(rig) as engine:
        await engine.submit(order)
        job = rig.site.job(rig.namespace, order.run)
        await wait_for_end(engine, order.run)
        told = dict(
            entry.split("=", 1) for entry in (await read_output(engine, order.run)).decode().split("\0") if entry
        )
    assert {name: told[name] for name in given} == given
    assert told["MOORINGS_RUN_ID"] == order.run
    assert told["MOORINGS_CHECKPOINT_DIR"] == "/work/checkpoints"
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MOORINGS_PARTITION_ID"} <= set(told)
    assert "quoted" not in str(job)


async def test_a_command_is_not_expanded_by_kubernetes(rig: KubernetesRig) -> None:
    words = ("$(PATH)", "$$", "$(NOBODY)", "$", "a$b", "$$$(PATH)")
    order = make_order(("/bin/printf", "%s\\n", *words), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_end(engine, order.run)
        assert (await read_output(engine, order.run)).decode().splitlines() == list(words)


async def test_when_it_has_ended_nothing_of_it_is_left_but_its_record(rig: KubernetesRig) -> None:
    order = make_order(rig.programs.prints("kept"), rig.workdir, tasks=2)
    async with open_engine(rig) as engine:
        await engine.submit(order)
        end = await wait_for_end(engine, order.run)
        async with asyncio.timeout(PATIENCE_S):
            while not rig.site.is_gone(rig.namespace, order.run):
                await engine.wait_for_change()
            while rig.site.job_pods(rig.namespace, order.run) or rig.cluster.find(
                "secret", f"{order.run}-environment", rig.namespace
            ):
                await engine.wait_for_change()
        assert sorted((await read_output(engine, order.run)).splitlines()) == [b"[0] kept", b"[1] kept"]
        assert await wait_for_end(engine, order.run) == end
    rig.site.await_empty()


async def test_a_strangers_job_of_that_name_is_neither_followed_nor_deleted(rig: KubernetesRig) -> None:
    order = make_order(rig.programs.prints("ran"), rig.workdir)
    rig.site.submit(rig.namespace, order.run)
    async with open_engine(rig) as engine:
        error = await error_of(engine.submit(order))
        assert error.code == "engine.rejected"
        assert "which is not this run's" in error.detail
        await engine.cancel(order.run, "enough")
    assert "deletionTimestamp" not in rig.site.job(rig.namespace, order.run)["metadata"]


async def test_while_the_api_server_is_away_nothing_is_concluded_and_nothing_is_lost(rig: KubernetesRig) -> None:
    running = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    later = make_order(rig.programs.prints("once"), rig.workdir)
    async with open_engine(rig) as engine:
        await engine.submit(running)
        await wait_for_output(engine, running.run, READY)
        rig.cluster.kill_api_server()
        try:
            for _ in range(3):
                assert (await observe_run(engine, running.run)).phase in (RunPhase.RUNNING, RunPhase.UNKNOWN)
            for demand in (engine.submit(later), engine.cancel(running.run, "enough")):
                error = await error_of(demand)
                assert (error.code, error.retryable) == ("engine.unavailable", True)
        finally:
            rig.cluster.start_api_server()
        async with asyncio.timeout(PATIENCE_S):
            await _until_taken(engine, later)
        assert (await wait_for_end(engine, later.run)).exit_code == 0
        assert await read_output(engine, later.run) == b"once\n"
        await engine.cancel(running.run, "asked again")
        end = await wait_for_end(engine, running.run)
        assert (end.ending, end.detail) == (EndReason.CANCELLED, "enough")
        assert await read_output(engine, running.run) == READY + b"\n"


async def _until_taken(engine: Engine, order: RunSubmission) -> None:
    while True:
        try:
            await engine.submit(order)
        except MooringsError as error:
            if not error.retryable:
                raise
            await engine.wait_for_change()
        else:
            return


async def test_an_output_is_whole_though_its_kubelet_and_its_controller_were_killed(rig: KubernetesRig) -> None:
    script = "n=0; while [ $n -lt 400 ]; do n=$((n + 1)); echo line $n; usleep 50000; done"
    order = make_order(rig.programs.shell(script), rig.workdir)
    node = rig.cluster.nodes[0]
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, b"line 20\n")
        node.kill_kubelet()
        await asyncio.sleep(1)
        node.start_kubelet()
        await wait_for_output(engine, order.run, b"line 120\n")
    async with open_engine(rig) as engine:
        assert (await wait_for_end(engine, order.run)).exit_code == 0
        assert (await read_output(engine, order.run)).decode().splitlines() == [f"line {n}" for n in range(1, 401)]


async def test_a_run_whose_node_loses_power_is_lost(rig: KubernetesRig) -> None:
    order = make_order(rig.programs.runs_until_stopped(), rig.workdir)
    node = rig.cluster.nodes[0]
    async with open_engine(rig) as engine:
        await engine.submit(order)
        await wait_for_output(engine, order.run, READY)
        node.kill()
        await asyncio.to_thread(rig.cluster.wait, partial(_is_noticed, rig.cluster, node.name), 60)
        assert (await observe_run(engine, order.run)).phase is RunPhase.RUNNING  # nobody can say otherwise
        await asyncio.to_thread(node.start)
        end = await wait_for_end(engine, order.run)
        assert (end.ending, end.exit_code) == (EndReason.LOST, 137)
        assert "its node was down" in end.detail
        assert (await read_output(engine, order.run)).startswith(READY)


def _is_noticed(cluster: KubernetesCluster, node: str) -> bool:
    """Whether the cluster knows that a node is away."""
    conditions = cluster.api("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] != "True" for one in conditions)
