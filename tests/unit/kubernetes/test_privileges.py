"""Power over the node: what a template may ask for where Pods are trusted with it, and what it may not elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.parsing import parse_ipujob
from moorings.kubernetes.ipujob.pod_security import NO_LIMITS, AdmissionLimits
from moorings.kubernetes.ipujob.validation import check_ipujob, check_update, find_errors
from moorings.kubernetes.kube.api import KubeObject
from moorings.kubernetes.operator.executor import build_partition_request
from moorings.kubernetes.operator.pod_builder import PodOptions
from moorings.kubernetes.operator.webhooks import make_rules, validate
from tests.cases import cases
from tests.unit.kubernetes.ipujobs import a_container, a_spec, a_template, an_object

ELSEWHERE = AdmissionLimits(privileged_namespaces=frozenset({"trusted"}))
NOWHERE = AdmissionLimits(privileged=False)
LAUNCHER = {"command": ["mpirun"]}
WHERE = "spec.workers.template"


def of_pod(**spec: Any) -> KubeObject:
    return a_spec(workers={"template": a_template(**spec)})


def of_container(**more: Any) -> KubeObject:
    return of_pod(containers=[a_container(**more)])


def secured(**context: Any) -> KubeObject:
    return of_container(securityContext=context)


ASKED: list[tuple[KubeObject, str]] = [
    (of_pod(hostNetwork=True), f"{WHERE}.spec.hostNetwork"),
    (of_pod(hostPID=True), f"{WHERE}.spec.hostPID"),
    (of_pod(hostIPC=True), f"{WHERE}.spec.hostIPC"),
    (of_pod(hostIPC="true"), f"{WHERE}.spec.hostIPC"),
    (of_pod(volumes=[{"name": "a"}, {"name": "v", "hostPath": {"path": "/"}}]), f"{WHERE}.spec.volumes[1].hostPath"),
    (of_pod(volumes=[{"name": "v", "hostPath": {}}]), f"{WHERE}.spec.volumes[0].hostPath"),
    (
        of_pod(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced"}, {"name": "kernel.msgmax"}]}),
        f"{WHERE}.spec.securityContext.sysctls[1]",
    ),
    (
        of_pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        f"{WHERE}.spec.securityContext.seccompProfile.type",
    ),
    (
        of_pod(initContainers=[a_container(name="i", securityContext={"privileged": True})]),
        f"{WHERE}.spec.initContainers[0].securityContext.privileged",
    ),
    (
        of_pod(containers=[a_container(), a_container(name="d", securityContext={"privileged": True})]),
        f"{WHERE}.spec.containers[1].securityContext.privileged",
    ),
    (of_container(ports=[{"hostPort": 22}]), f"{WHERE}.spec.containers[0].ports[0].hostPort"),
    (secured(allowPrivilegeEscalation=True), f"{WHERE}.spec.containers[0].securityContext.allowPrivilegeEscalation"),
    (secured(procMount="Unmasked"), f"{WHERE}.spec.containers[0].securityContext.procMount"),
    (
        secured(capabilities={"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}),
        f"{WHERE}.spec.containers[0].securityContext.capabilities.add[1]",
    ),
    (secured(capabilities={"add": [["x"]]}), f"{WHERE}.spec.containers[0].securityContext.capabilities.add[0]"),
    (
        secured(appArmorProfile={"type": "Unconfined"}),
        f"{WHERE}.spec.containers[0].securityContext.appArmorProfile.type",
    ),
    (secured(seLinuxOptions={"type": "spc_t"}), f"{WHERE}.spec.containers[0].securityContext.seLinuxOptions.type"),
    (secured(seLinuxOptions={"role": "r"}), f"{WHERE}.spec.containers[0].securityContext.seLinuxOptions.role"),
    (
        secured(windowsOptions={"hostProcess": True}),
        f"{WHERE}.spec.containers[0].securityContext.windowsOptions.hostProcess",
    ),
    (
        a_spec(
            workers={
                "template": {
                    "metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}},
                    **a_template(),
                }
            }
        ),
        f"{WHERE}.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]",
    ),
    (
        a_spec(launcher={**LAUNCHER, "securityContext": {"privileged": True}}),
        "spec.launcher.securityContext.privileged",
    ),
    (
        a_spec(launcher={**LAUNCHER, "securityContext": {"capabilities": {"add": ["ALL"]}}}),
        "spec.launcher.securityContext.capabilities.add[0]",
    ),
]


@cases(("spec", "path"), ASKED, ids=[path for _, path in ASKED])
def test_power_over_the_node_is_for_the_namespaces_that_an_admin_names(spec: KubeObject, path: str) -> None:
    for limits in (ELSEWHERE, NOWHERE):
        (fault,) = find_errors(an_object(spec), limits)
        assert (fault.path, fault.problem) == (
            path,
            "is power over the node, which Pods in this namespace do not have",
        )
        assert "jobs.privilegedNamespaces" in fault.hint
    assert find_errors(an_object(spec, namespace="trusted"), ELSEWHERE) == ()
    assert find_errors(an_object(spec), NO_LIMITS) == ()


@pytest.mark.parametrize(
    "spec",
    [
        of_pod(hostNetwork=False, hostPID=None, volumes=[{"name": "v", "emptyDir": {}}]),
        of_container(ports=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 0}]),
        secured(
            privileged=False,
            allowPrivilegeEscalation=False,
            runAsUser=0,
            procMount="Default",
            capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
            seccompProfile={"type": "RuntimeDefault"},
            seLinuxOptions={"type": "container_t", "level": "s0"},
        ),
        a_spec(launcher={**LAUNCHER, "securityContext": {"runAsUser": 1000}}),
    ],
    ids=str,
)
def test_what_has_no_power_over_the_node_is_everybody_s(spec: KubeObject) -> None:
    assert find_errors(an_object(spec), ELSEWHERE) == ()
    assert find_errors(an_object(spec), NOWHERE) == ()


def test_a_namespace_that_is_named_is_trusted_where_nobody_is_given_privileges() -> None:
    limits = AdmissionLimits(privileged=False, privileged_namespaces=frozenset({"trusted"}))
    assert limits.is_trusted("trusted")
    assert not limits.is_trusted("default")
    assert not limits.is_trusted(""), "what is in no namespace is in none that is named"


def test_the_webhook_and_whoever_asks_know_the_limits() -> None:
    job = an_object(of_pod(hostPID=True))
    with pytest.raises(MooringsError, match=r"hostPID: is power over the node"):
        check_ipujob(job, ELSEWHERE)
    with pytest.raises(MooringsError, match=r"hostPID: is power over the node"):
        validate(make_rules(ELSEWHERE), {"operation": "CREATE", "object": job})
    assert validate(make_rules(NO_LIMITS), {"operation": "CREATE", "object": job}) == {"allowed": True}


def test_a_job_from_before_the_limits_may_still_be_scaled() -> None:
    """The operator's own check refuses to make more of it; here it must not be held for ever."""
    spec = of_pod(hostPID=True)
    check_update(an_object(spec), an_object({**spec, "jobInstances": 2}), ELSEWHERE)


def test_a_priority_above_the_site_s_is_refused_with_who_may_raise_it() -> None:
    limits = AdmissionLimits(max_priority=5)
    (fault,) = find_errors(an_object(a_spec(priority=6)), limits)
    assert (fault.path, fault.problem) == ("spec.priority", "6 is above 5, the highest that is allowed here")
    assert "jobs.maxPriority" in fault.hint
    with pytest.raises(MooringsError, match=r"spec.priority: 6 is above 5"):
        validate(make_rules(limits), {"operation": "CREATE", "object": an_object(a_spec(priority=6))})
    for priority in (5, 0, -1_000_000):
        assert find_errors(an_object(a_spec(priority=priority)), limits) == ()
    assert find_errors(an_object(a_spec(priority=1_000_000)), NO_LIMITS) == ()
    assert PodOptions().limits.max_priority == 0


def test_a_job_from_before_the_limit_of_priorities_may_still_be_scaled() -> None:
    spec = a_spec(priority=6)
    check_update(an_object(spec), an_object({**spec, "jobInstances": 2}), AdmissionLimits(max_priority=0))


def test_what_such_a_job_asks_for_from_now_on_has_the_highest_priority_that_is_allowed() -> None:
    meta = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = parse_ipujob(an_object(a_spec(priority=6), **meta))
    assert [build_partition_request(job, 0, most).priority for most in (0, 6, 9)] == [0, 6, 6]
    low = parse_ipujob(an_object(a_spec(priority=-3), **meta))
    assert build_partition_request(low, 0, 0).priority == -3


def test_a_new_job_where_nobody_looks_after_jobs_is_refused_and_an_old_one_may_be_changed() -> None:
    limits = AdmissionLimits(namespaces=frozenset({"research"}))
    job = an_object(a_spec())
    with pytest.raises(MooringsError, match="nobody looks after IPUJobs in default") as caught:
        check_ipujob(job, limits)
    assert "watchNamespaces" in caught.value.hint
    check_update(job, job | {"spec": a_spec(jobInstances=2)}, limits)
    check_ipujob(job | {"metadata": job["metadata"] | {"namespace": "research"}}, limits)
