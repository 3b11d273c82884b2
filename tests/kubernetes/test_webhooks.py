"""The webhooks and their certificates on a real API server: asked by URL and by Service, renewed, raced for, gone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from moorings.app.clock import SystemClock
from moorings.core.model.timestamps import Timestamp, add_seconds
from moorings.kubernetes.ipujob.fields import NAME
from moorings.kubernetes.ipujob.types import FINALIZER, PLURAL
from moorings.kubernetes.kube.certificates import (
    OVERLAP,
    PROPAGATION,
    build_secret,
    build_secret_data,
    make_certificates,
    parse_secret,
    service_names,
)
from moorings.kubernetes.kube.client import KubeClient, connect
from moorings.kubernetes.kube.serving_certificate import CertificateRotator, WebhookTrustStore
from moorings.kubernetes.operator.webhook_server import listen, make_webhook_server
from moorings.kubernetes.operator.webhooks import MUTATE, VALIDATE, make_webhook_app
from tests.kubernetes.cluster import KubernetesCluster, KubernetesError, Obj
from tests.waiting import patient

pytestmark = pytest.mark.whole  # a server of definitions alone finds a webhook's Service by DNS, which is not here

CRD = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "CRDs" / "graphcore.ai_ipujobs.yaml"
SERVICE, SECRET, HOOKS = "hooks", "hooks-tls", "moor-hooks"
KINDS = {
    "mutating": ("MutatingWebhookConfiguration", MUTATE),
    "validating": ("ValidatingWebhookConfiguration", VALIDATE),
}

# What the operator's and the patch jobs' accounts need, and no more.
RIGHTS = f"""
apiVersion: v1
kind: ServiceAccount
metadata: {{name: keeper}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: keeper}}
rules:
- {{apiGroups: [""], resources: [secrets], verbs: [create]}}
- {{apiGroups: [""], resources: [secrets], resourceNames: [{SECRET}], verbs: [get, update]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: keeper}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: keeper}}
subjects: [{{kind: ServiceAccount, name: keeper, namespace: NAMESPACE}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: keeper}}
rules:
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [{HOOKS}]
  verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: keeper-NAMESPACE}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: keeper}}
subjects: [{{kind: ServiceAccount, name: keeper, namespace: NAMESPACE}}]
"""


class Clock(SystemClock):
    """The machine's clock, put forward."""

    forward = timedelta()

    def now(self) -> Timestamp:
        return add_seconds(super().now(), self.forward.total_seconds())


class Site:
    """A namespace with an account that may keep certificates, and replicas in this process."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, kubeconfig: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.kubeconfig = kubeconfig
        self.clock = Clock()

    def keeper(self, kube: KubeClient) -> CertificateRotator:
        names = service_names(SERVICE, self.namespace, [self.cluster.host])
        return CertificateRotator(
            kube,
            self.clock,
            namespace=self.namespace,
            secret=SECRET,
            callers=WebhookTrustStore(kube, HOOKS),
            names=names,
        )

    @contextlib.asynccontextmanager
    async def replica(self) -> AsyncIterator[tuple[CertificateRotator, int]]:
        """A keeper that is prepared, and the port on which its webhooks are served."""
        kube = connect({}, path=str(self.kubeconfig))
        keeper = self.keeper(kube)
        with contextlib.closing(listen(self.cluster.host, 0)) as listening:
            await keeper.prepare()
            server = make_webhook_server(make_webhook_app(is_ready=lambda: keeper.is_ready), keeper.context)
            work = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                yield keeper, listening.getsockname()[1]
            finally:
                server.should_exit = True
                await work
                await kube.close()

    def configure(self, policy: str = "Fail", url: str = "", validating_url: str = "") -> None:
        """Make the webhook configurations, by URL or by the Service."""
        for name, (kind, path) in KINDS.items():
            by_url = {"url": f"{validating_url if validating_url and name == 'validating' else url}{path}"}
            by_service = {"service": {"name": SERVICE, "namespace": self.namespace, "path": path}}
            webhook = {
                "name": f"{name}.ipujob.graphcore.ai",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": policy,
                "timeoutSeconds": 10,
                "clientConfig": by_url if url else by_service,
                "rules": [
                    {
                        "apiGroups": ["graphcore.ai"],
                        "apiVersions": ["v1alpha1"],
                        "operations": ["CREATE", "UPDATE"],
                        "resources": [PLURAL],
                    }
                ],
                "namespaceSelector": {"matchLabels": {"hooked": self.namespace}},
            }
            body = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": HOOKS},
                "webhooks": [webhook],
            }
            self.cluster.apply(json.dumps(body))

    @property
    def secret(self) -> Obj:
        return self.cluster.get("secret", SECRET, self.namespace)

    @property
    def bundles(self) -> set[bytes]:
        found = [self.cluster.get(kind.lower(), HOOKS)["webhooks"] for kind, _ in KINDS.values()]
        return {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hooks in found for hook in hooks}

    def create(self, name: str, *, dry: bool = False, **spec: Any) -> Obj:
        path = f"/apis/graphcore.ai/v1alpha1/namespaces/{self.namespace}/{PLURAL}" + ("?dryRun=All" if dry else "")
        return self.cluster.api("POST", path, job(name, **spec))

    async def hooked(self) -> None:
        """Returns once the API server asks the webhooks: it takes a moment to hear of new ones."""

        def asks() -> bool:
            return FINALIZER in self.create("try", dry=True)["metadata"].get("finalizers", ())

        await asyncio.to_thread(self.cluster.wait, asks, what=lambda: "the webhooks to be asked")


def job(name: str, **spec: Any) -> Obj:
    containers = [{"name": "main", "image": "main:latest"}]
    given = {
        "ipusPerJobInstance": "1",
        "launcher": {"command": ["mpirun", "true"]},
        "workers": {"replicas": 1, "template": {"spec": {"containers": containers}}},
    }
    metadata = {"name": name}
    return {"apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": metadata, "spec": given | spec}


@pytest.fixture
def site(cluster: KubernetesCluster, namespace: str) -> Iterator[Site]:
    try:
        cluster.api("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}")
    except KubernetesError:
        cluster.kubectl("apply", "-f", str(CRD))
    cluster.wait(lambda: cluster.run_kubectl("get", PLURAL).returncode == 0)
    cluster.kubectl("label", "namespace", namespace, f"hooked={namespace}")
    cluster.apply(RIGHTS.replace("NAMESPACE", namespace), "-n", namespace)
    yield Site(cluster, namespace, cluster.make_token_kubeconfig(namespace, "keeper"))
    cluster.kubectl("delete", "clusterrolebinding", f"keeper-{namespace}")


# -- asked -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["url", "service"])
async def test_jobs_are_completed_checked_and_warned_of(site: Site, way: str) -> None:
    async with site.replica() as (keeper, port):
        await asyncio.to_thread(site.cluster.add_service, SERVICE, site.namespace, port)
        site.configure(url=f"https://{site.cluster.host}:{port}" if way == "url" else "")
        await keeper.reconcile()
        await site.hooked()
        await asyncio.to_thread(_try_jobs, site)


def _try_jobs(site: Site) -> None:
    made = site.create("sample")
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert made["spec"]["restartPolicy"]["type"] == "Never"
    kubectl, where = site.cluster.run_kubectl, ("-n", site.namespace)

    refused = kubectl("apply", *where, "-f", "-", input=json.dumps(job("a-name-that-is-longer-than-thirty-six-chars")))
    assert refused.returncode != 0
    assert "is invalid: metadata.name: has 43 characters; at most 36 are allowed" in refused.stderr
    assert "the vendor's library fail" in refused.stderr

    older = job("older", modelReplicas="1", ipusPerModelReplica="1")
    del older["spec"]["ipusPerJobInstance"]
    warned = kubectl("apply", *where, "-f", "-", input=json.dumps(older))
    assert warned.returncode == 0, warned.stderr
    assert "Warning: spec.modelReplicas is an older name" in warned.stderr

    assert kubectl("scale", *where, f"{PLURAL}/sample", "--replicas=3").returncode == 0
    patch = ("patch", *where, PLURAL, "sample", "--type=merge", "-p")
    refused = kubectl(*patch, '{"spec":{"ipusPerJobInstance":"2"}}')
    assert "cannot be changed while the job exists" in refused.stderr
    assert kubectl(*patch, '{"spec":{"cleanPodPolicy":"All"}}').returncode == 0
    for name in ("sample", "older"):
        assert kubectl(*where, "delete", PLURAL, name, "--wait=false").returncode == 0
        finish = ("patch", *where, PLURAL, name, "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
        assert kubectl(*finish).returncode == 0
    assert site.cluster.list(PLURAL, site.namespace) == []


async def test_a_job_that_came_past_the_webhooks_can_be_finished(site: Site) -> None:
    """Its name is one that no release would let in."""
    name = "a-name-that-is-longer-than-thirty-six-characters"
    site.cluster.apply(
        json.dumps(job(name) | {"metadata": {"name": name, "finalizers": [FINALIZER]}}), "-n", site.namespace
    )
    async with site.replica() as (keeper, port):
        site.configure(url=f"https://{site.cluster.host}:{port}")
        await keeper.reconcile()
        await site.hooked()
        with pytest.raises(KubernetesError):
            await asyncio.to_thread(site.create, f"{name}-2")
        await asyncio.to_thread(_finish, site, name)


def _finish(site: Site, name: str) -> None:
    where = ("-n", site.namespace)
    site.cluster.kubectl("label", *where, PLURAL, name, "seen=yes")
    site.cluster.kubectl("delete", *where, PLURAL, name, "--wait=false")
    site.cluster.kubectl("patch", *where, PLURAL, name, "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    assert site.cluster.find(PLURAL, name, site.namespace) is None


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_webhooks_that_are_down_hold_jobs_up_or_do_not_as_the_policy_says(site: Site, policy: str) -> None:
    async with site.replica() as (keeper, port):
        site.configure(policy, url=f"https://{site.cluster.host}:{port}")
        await keeper.reconcile()
        await site.hooked()
    if policy == "Fail":
        with pytest.raises(KubernetesError, match="failed calling webhook"):
            await asyncio.to_thread(site.create, "sample")
    else:
        made = await asyncio.to_thread(site.create, "sample")
        assert "finalizers" not in made["metadata"]


# -- certificates ------------------------------------------------------------------------------------------------------


async def test_an_authority_is_replaced_while_jobs_come_in(site: Site) -> None:
    """From somebody else's, near its end, over both to ours alone; two replicas, one of which always comes later."""
    names = service_names(SERVICE, site.namespace, [site.cluster.host])
    old = replace(make_certificates(names, datetime.now(UTC) - timedelta(days=300)), ca_key=b"")
    site.cluster.apply(json.dumps(build_secret(site.namespace, SECRET, build_secret_data(old))))
    async with site.replica() as (first, port), site.replica() as (second, other):
        site.configure(url=f"https://{site.cluster.host}:{port}", validating_url=f"https://{site.cluster.host}:{other}")
        await first.reconcile()
        await site.hooked()
        over, count = asyncio.Event(), 0

        async def submit() -> int:
            count = 0
            while not over.is_set():
                made = await asyncio.to_thread(site.create, "again", dry=True)  # with policy Fail
                assert made["metadata"]["finalizers"] == [FINALIZER]
                count += 1
            return count

        work = [asyncio.create_task(submit()) for _ in range(2)]
        bundles, certificates = [], []
        for forward in (timedelta(), PROPAGATION + timedelta(minutes=1), OVERLAP + timedelta(hours=1)):
            site.clock.forward = forward
            await first.reconcile()
            await asyncio.sleep(0.5)  # jobs come in between the two replicas' looks
            await second.reconcile()
            await asyncio.sleep(0.5)
            bundles.append(site.bundles)
            certificates.append(site.secret["data"]["cert"])
        over.set()
        count = sum(await asyncio.gather(*work))
    assert count > 20
    (one,), (two,), (three,) = bundles
    assert one == two
    assert one.startswith(old.ca)
    assert three == one.removeprefix(old.ca)
    assert certificates[0] == base64.b64encode(old.cert).decode()
    assert certificates[1] == certificates[2] != certificates[0]


async def test_replicas_that_race_make_one_certificate(site: Site) -> None:
    site.configure(url=f"https://{site.cluster.host}:1")
    kubes = [connect({}, path=str(site.kubeconfig)) for _ in range(4)]
    keepers = [site.keeper(kube) for kube in kubes]
    await asyncio.gather(*(keeper.prepare() for keeper in keepers))
    held = parse_secret(site.secret)
    assert held is not None
    assert held.ca_key
    assert site.secret["type"] == "Opaque"
    await asyncio.gather(*(keeper.reconcile() for keeper in keepers))
    assert site.bundles == {held.ca}
    site.clock.forward = timedelta(days=300)
    await asyncio.gather(*(keeper.reconcile() for keeper in keepers))
    renewed = parse_secret(site.secret)
    assert renewed is not None
    assert renewed.cert != held.cert
    assert renewed.ca == held.ca
    before = site.secret
    await asyncio.gather(*(keeper.reconcile() for keeper in keepers))
    assert site.secret == before, "nothing is written twice"
    for kube in kubes:
        await kube.close()


# -- the patch jobs ----------------------------------------------------------------------------------------------------


def certgen(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"KUBECONFIG": str(site.kubeconfig)}
    argv = [sys.executable, "-m", "moorings.app.kubernetes_certgen", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=patient(60))


async def test_what_the_patch_jobs_make_is_served_and_believed(site: Site) -> None:
    """As the chart runs them: create, then the operator and the configurations, then patch."""
    hosts = f"{SERVICE},{SERVICE}.{site.namespace}.svc"
    shared = [f"--namespace={site.namespace}", f"--secret-name={SECRET}"]
    create = ["create", f"--host={hosts}", *shared]
    patch = ["patch", "--webhook-name", HOOKS, *shared, "--patch-mutating=true", "--patch-validating=true"]

    missing = certgen(site, *patch)
    assert missing.returncode == 3
    assert f"there is no Secret {site.namespace}/{SECRET}" in missing.stderr

    for _ in range(2):
        made = certgen(site, *create)
        assert made.returncode == 0, made.stderr
    held = copy.deepcopy(site.secret)
    async with site.replica() as (_, port):
        await asyncio.to_thread(site.cluster.add_service, SERVICE, site.namespace, port)
        site.configure("Ignore")
        patched = await asyncio.to_thread(certgen, site, *patch, "--patch-failure-policy=Fail")
        assert patched.returncode == 0, patched.stderr
        await site.hooked()
    assert site.secret["data"]["ca"] == held["data"]["ca"]
    hooks = site.cluster.get("validatingwebhookconfiguration", HOOKS)["webhooks"]
    assert [hook["failurePolicy"] for hook in hooks] == ["Fail"]


def test_a_patch_job_without_rights_says_which_it_lacks(site: Site) -> None:
    denied = certgen(site, "create", "--host=a", f"--namespace={site.namespace}-not", "--secret-name=a")
    assert denied.returncode != 0
    assert "forbidden" in denied.stderr.lower()
    assert f"needs a Role for the Secret {site.namespace}-not/a" in denied.stderr
