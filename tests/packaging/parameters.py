"""The parameters of the chart: Table 6.1 of the operator's documentation, and what we have beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moorings import __version__
from tests.packaging.chart import NAMESPACE, RELEASE, Obj, Rendered

CONTROLLER = ("Deployment", "controller-manager")
PROXY = ("Deployment", "vipu-proxy")
CREATE, PATCH = ("Job", "webhook-create"), ("Job", "webhook-patch")
WEBHOOKS = (("MutatingWebhookConfiguration", "webhook"), ("ValidatingWebhookConfiguration", "webhook"))
FULL = f"{RELEASE}-ipu-operator"
SECRET, CA = f"{FULL}-vipu-proxy-certificate", f"{FULL}-vipu-proxy-ca"
TOLERATION = [{"key": "ipu", "operator": "Exists", "effect": "NoSchedule"}]
AFFINITY: Obj = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}

Look = Callable[[Rendered], Any]


@dataclass(frozen=True)
class Row:
    """A row of Table 6.1: the parameter, its default, another value, and what that value does.

    ``look`` gives what is to be seen in the rendered objects; ``expected`` what it is with the other value.
    """

    path: str
    default: Any
    other: Any
    look: Look
    expected: Any


def field(where: tuple[str, str], path: str) -> Look:
    return lambda rendered: rendered.at(*where, path)


def pod(where: tuple[str, str], path: str) -> Look:
    return field(where, f"spec.template.spec.{path}")


def option(name: str, where: tuple[str, str] = CONTROLLER, container: str = "manager") -> Look:
    return lambda rendered: rendered.args(*where, container).get(name)


def proxy_option(name: str) -> Look:
    return option(name, PROXY, "vipu-proxy")


def several(*looks: Look) -> Look:
    return lambda rendered: [look(rendered) for look in looks]


def names(rendered: Rendered) -> set[str]:
    return {each["metadata"]["name"] for each in rendered.objects}


def jobs(path: str) -> Look:
    return several(pod(CREATE, path), pod(PATCH, path))


def hooks(name: str) -> Look:
    return lambda rendered: [rendered[each]["webhooks"][0].get(name) for each in WEBHOOKS]


def role_kinds(suffix: str) -> Look:
    kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    return lambda rendered: [kind for kind in kinds if (kind, suffix) in rendered]


def account(where: tuple[str, str]) -> Look:
    """The account of a Deployment's Pods, whether the chart makes it, and who has the rights."""
    name = pod(where, "serviceAccountName")

    def look(rendered: Rendered) -> Any:
        used = name(rendered)
        bound = rendered["ClusterRoleBinding", where[1]]["subjects"][0]["name"]
        return used, ("ServiceAccount", used) in rendered, bound

    return look


def tolerations(path: str, look: Look, times: int = 1) -> Row:
    return Row(path, [], TOLERATION, look, TOLERATION if times == 1 else [TOLERATION] * times)


MANAGER, GUARD, IN_PROXY = "containers[manager].", "containers[metrics-guard].", "containers[vipu-proxy]."
PULLED_BY = several(*(pod(each, "imagePullSecrets") for each in (CONTROLLER, PROXY, CREATE, ("Job", "uninstall"))))
HARD = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
SAFE = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}

TABLE = [
    Row("nameOverride", "", "ipus", lambda r: "gc-ipus-controller-manager" in names(r), True),
    Row("fullNameOverride", "", "ipus", lambda r: "ipus-controller-manager" in names(r), True),
    Row("global.imagePullSecrets", [], [{"name": "test-secret"}], PULLED_BY, [[{"name": "test-secret"}]] * 4),
    Row("global.kubectlVersion", [], "1.20.2", option("--kubectl-version"), "1.20.2"),
    Row("global.launcherImagePullPolicy", "Never", "Always", option("--launcher-image-pull-policy"), "Always"),
    Row("global.launcherImage", "launcher:latest", "a/launcher:1", option("--launcher-image"), "a/launcher:1"),
    Row(
        "global.vipuControllers",
        [],
        "pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2",
        lambda r: r["ConfigMap", "vipu-controllers"]["data"]["vipu-controllers"],
        "pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2",
    ),
    Row("admissionWebhooks.failurePolicy", "Fail", "Ignore", hooks("failurePolicy"), ["Ignore", "Ignore"]),
    Row(
        "admissionWebhooks.patch.image.pullPolicy",
        "IfNotPresent",
        "Always",
        several(pod(CREATE, "containers[create].imagePullPolicy"), pod(PATCH, "containers[patch].imagePullPolicy")),
        ["Always", "Always"],
    ),
    Row(
        "admissionWebhooks.patch.image.repository",
        "",
        "a/webhook-certgen",
        several(pod(CREATE, "containers[create].image"), pod(PATCH, "containers[patch].image")),
        ["a/webhook-certgen:v1.1.1"] * 2,
    ),
    Row("admissionWebhooks.patch.nodeSelector", {}, {"a": "b"}, jobs("nodeSelector"), [{"a": "b"}] * 2),
    Row(
        "admissionWebhooks.patch.podAnnotations",
        {},
        {"a": "b"},
        several(*(field(each, "spec.template.metadata.annotations") for each in (CREATE, PATCH))),
        [{"a": "b"}] * 2,
    ),
    Row("admissionWebhooks.patch.priorityClassName", "", "high", jobs("priorityClassName"), ["high"] * 2),
    Row("admissionWebhooks.patch.runAsUser", 2000, 1000650000, jobs("securityContext.runAsUser"), [1000650000] * 2),
    tolerations("admissionWebhooks.patch.tolerations", jobs("tolerations"), 2),
    Row(
        "admissionWebhooks.port",
        9443,
        9444,
        several(
            option("--webhook-port"),
            lambda r: r.at(*CONTROLLER, "spec.template.spec.containers[manager].ports[webhook].containerPort"),
        ),
        ["9444", 9444],
    ),
    Row(
        "admissionWebhooks.service.annotations",
        {},
        {"a": "b"},
        field(("Service", "webhook"), "metadata.annotations"),
        {"a": "b"},
    ),
    Row(
        "admissionWebhooks.service.servicePort",
        443,
        8443,
        several(
            field(("Service", "webhook"), "spec.ports[webhook].port"),
            lambda r: [c["service"]["port"] for c in hooks("clientConfig")(r)],
        ),
        [8443, [8443, 8443]],
    ),
    Row(
        "admissionWebhooks.service.type",
        "ClusterIP",
        "NodePort",
        field(("Service", "webhook"), "spec.type"),
        "NodePort",
    ),
    Row("admissionWebhooks.timeoutSeconds", 30, 5, hooks("timeoutSeconds"), [5, 5]),
    Row("controller.affinity", {}, AFFINITY, pod(CONTROLLER, "affinity"), AFFINITY),
    Row("controller.develLogs", True, False, lambda r: "--devel-logs" in r.args(*CONTROLLER, "manager"), False),
    Row("controller.dnsPolicy", "ClusterFirstWithHostNet", "Default", pod(CONTROLLER, "dnsPolicy"), "Default"),
    Row(
        "controller.hostNetwork",
        True,
        False,
        several(
            pod(CONTROLLER, "hostNetwork"),
            pod(CONTROLLER, "dnsPolicy"),
            field(CONTROLLER, "spec.strategy.rollingUpdate"),
        ),
        [False, "ClusterFirst", {"maxSurge": 1, "maxUnavailable": 0}],
    ),
    Row(
        "controller.image.pullPolicy",
        "Always",
        "Never",
        several(pod(CONTROLLER, MANAGER + "imagePullPolicy"), pod(CONTROLLER, GUARD + "imagePullPolicy")),
        ["Never", "Never"],
    ),
    Row(
        "controller.image.repository",
        "localhost:5000/controller",
        "a/b",
        several(
            pod(CONTROLLER, MANAGER + "image"),
            pod(CONTROLLER, GUARD + "image"),
            pod(("Job", "uninstall"), "containers[uninstall].image"),
        ),
        [f"a/b:{__version__}"] * 3,
    ),
    Row("controller.image.tag", "", "7", pod(CONTROLLER, MANAGER + "image"), "localhost:5000/controller:7"),
    Row("controller.nodeSelector", {}, {"a": "b"}, pod(CONTROLLER, "nodeSelector"), {"a": "b"}),
    Row(
        "controller.podAnnotations",
        {},
        {"a": "b"},
        field(CONTROLLER, "spec.template.metadata.annotations"),
        {"a": "b"},
    ),
    Row(
        "controller.podSecurityContext",
        {"runAsUser": 65532},
        {"runAsUser": 1000},
        pod(CONTROLLER, "securityContext"),
        SAFE | {"runAsUser": 1000},
    ),
    Row("controller.rbac.create", True, False, role_kinds("controller-manager"), []),
    Row("controller.resources.limits.cpu", "500m", "1", pod(CONTROLLER, MANAGER + "resources.limits.cpu"), "1"),
    Row(
        "controller.resources.limits.memory",
        "512Mi",
        "1Gi",
        pod(CONTROLLER, MANAGER + "resources.limits.memory"),
        "1Gi",
    ),
    Row("controller.resources.requests.cpu", "100m", "1", pod(CONTROLLER, MANAGER + "resources.requests.cpu"), "1"),
    Row(
        "controller.resources.requests.memory",
        "200Mi",
        "1Gi",
        pod(CONTROLLER, MANAGER + "resources.requests.memory"),
        "1Gi",
    ),
    Row(
        "controller.securityContext",
        {},
        {"readOnlyRootFilesystem": False},
        pod(CONTROLLER, MANAGER + "securityContext"),
        HARD | {"readOnlyRootFilesystem": False},
    ),
    Row(
        "controller.service.port",
        8443,
        9999,
        several(
            field(("Service", "controller-manager"), "spec.ports[metrics].port"),
            option("--port", CONTROLLER, "metrics-guard"),
            pod(CONTROLLER, GUARD + "ports[metrics].containerPort"),
        ),
        [9999, "9999", 9999],
    ),
    Row(
        "controller.service.type",
        "ClusterIP",
        "NodePort",
        field(("Service", "controller-manager"), "spec.type"),
        "NodePort",
    ),
    Row(
        "controller.serviceAccount.annotations",
        {},
        {"a": "b"},
        field(("ServiceAccount", "controller-manager"), "metadata.annotations"),
        {"a": "b"},
    ),
    Row("controller.serviceAccount.create", True, False, account(CONTROLLER), ("default", False, "default")),
    Row("controller.serviceAccount.name", "", "me", account(CONTROLLER), ("me", True, "me")),
    tolerations("controller.tolerations", pod(CONTROLLER, "tolerations")),
    Row("vipuProxy.affinity", {}, AFFINITY, pod(PROXY, "affinity"), AFFINITY),
    Row("vipuProxy.image.pullPolicy", "Always", "Never", pod(PROXY, IN_PROXY + "imagePullPolicy"), "Never"),
    Row(
        "vipuProxy.image.repository",
        "localhost:5000/vipu-proxy",
        "a/b",
        pod(PROXY, IN_PROXY + "image"),
        f"a/b:{__version__}",
    ),
    Row("vipuProxy.image.tag", "", "7", pod(PROXY, IN_PROXY + "image"), "localhost:5000/vipu-proxy:7"),
    Row("vipuProxy.logLevel", 2, 6, proxy_option("--log-level"), "6"),
    Row("vipuProxy.nodeSelector", {}, {"a": "b"}, pod(PROXY, "nodeSelector"), {"a": "b"}),
    Row("vipuProxy.podAnnotations", {}, {"a": "b"}, field(PROXY, "spec.template.metadata.annotations"), {"a": "b"}),
    Row(
        "vipuProxy.podSecurityContext",
        {},
        {"fsGroup": 1000},
        pod(PROXY, "securityContext"),
        SAFE | {"fsGroup": 1000},
    ),
    Row("vipuProxy.proxyIdleTimeoutSeconds", 60, 61, proxy_option("--idle-timeout"), "61"),
    Row(
        "vipuProxy.proxyPartitionTrackerConfigMap",
        "ipu-partitions-tracker",
        "seen",
        several(
            proxy_option("--tracker-configmap"),
            lambda r: ("ConfigMap", "seen") in r,
            lambda r: [rule.get("resourceNames") for rule in r["Role", "vipu-proxy"]["rules"]],
        ),
        ["seen", True, [None, [SECRET], None, [CA], ["seen"]]],
    ),
    Row(
        "vipuProxy.proxyPort",
        8080,
        8081,
        several(proxy_option("--port"), pod(PROXY, IN_PROXY + "ports[http].containerPort")),
        ["8081", 8081],
    ),
    Row("vipuProxy.proxyReadTimeoutSeconds", 30, 31, proxy_option("--read-timeout"), "31"),
    Row("vipuProxy.proxyWriteTimeoutSeconds", 300, 301, proxy_option("--write-timeout"), "301"),
    Row("vipuProxy.rbac.create", True, False, role_kinds("vipu-proxy"), []),
    Row(
        "vipuProxy.resources",
        {},
        {"limits": {"memory": "1Gi"}},
        pod(PROXY, IN_PROXY + "resources"),
        {"limits": {"memory": "1Gi"}},
    ),
    Row(
        "vipuProxy.securityContext",
        {},
        {"readOnlyRootFilesystem": False},
        pod(PROXY, IN_PROXY + "securityContext"),
        HARD | {"readOnlyRootFilesystem": False},
    ),
    Row(
        "vipuProxy.service.port",
        80,
        8000,
        field(("Service", "vipu-proxy"), "spec.ports[http].port"),
        8000,
    ),
    Row("vipuProxy.service.type", "ClusterIP", "NodePort", field(("Service", "vipu-proxy"), "spec.type"), "NodePort"),
    Row(
        "vipuProxy.serviceAccount.annotations",
        {},
        {"a": "b"},
        field(("ServiceAccount", "vipu-proxy"), "metadata.annotations"),
        {"a": "b"},
    ),
    Row("vipuProxy.serviceAccount.create", True, False, account(PROXY), ("default", False, "default")),
    Row("vipuProxy.serviceAccount.name", "", "me", account(PROXY), ("me", True, "me")),
    tolerations("vipuProxy.tolerations", pod(PROXY, "tolerations")),
]

# What the table does not have.
MORE = [
    Row(
        "global.imageRegistry",
        "",
        "reg.example:443/ipus/",
        several(
            pod(CONTROLLER, MANAGER + "image"),
            pod(CONTROLLER, GUARD + "image"),
            pod(PROXY, IN_PROXY + "image"),
            pod(CREATE, "containers[create].image"),
            pod(("Job", "uninstall"), "containers[uninstall].image"),
            option("--launcher-image"),
            option("--launcher-image-pull-policy"),
        ),
        [
            f"reg.example:443/ipus/{name}:{__version__}"
            for name in ("controller", "controller", "vipu-proxy", "controller", "controller", "launcher")
        ]
        + ["IfNotPresent"],
    ),
    Row(
        "clusterName", "kubernetes", "c2", several(option("--cluster-name"), proxy_option("--cluster-name")), ["c2"] * 2
    ),
    Row(
        "watchNamespaces",
        [],
        ["a", "b"],
        several(
            option("--watch-namespaces"),
            option("--launcher-role"),
            option("--watch-namespaces", ("Job", "uninstall"), "uninstall"),
        ),
        ["a,b", None, "a,b"],
    ),
    Row(
        "vipuControllers",
        [],
        ["pod1:8090:ipunode=pod1"],
        lambda r: r["ConfigMap", "vipu-controllers"]["data"]["vipu-controllers"],
        "pod1:8090:ipunode=pod1",
    ),
    Row(
        "jobs.hostNetwork",
        True,
        False,
        several(option("--no-host-network"), option("--dns-policy")),
        ["", "ClusterFirst"],
    ),
    Row("jobs.privileged", True, False, option("--no-privileged"), ""),
    Row("jobs.dnsPolicy", "ClusterFirstWithHostNet", "Default", option("--dns-policy"), "Default"),
    Row("jobs.privilegedNamespaces", [], ["a", "b"], option("--privileged-namespaces"), "a,b"),
    Row("jobs.maxPriority", 0, 1_000_000, option("--max-priority"), "1000000"),
    Row("jobs.suspendQueued", False, True, option("--suspend-queued"), ""),
    Row("jobs.startDeadlineSeconds", 600, 0, option("--start-deadline-s"), "0"),
    Row(
        "jobs.aggregateRoles",
        True,
        False,
        lambda r: [("ClusterRole", f"ipujobs-{one}") in r for one in ("view", "edit")],
        [False, False],
    ),
    Row(
        "certManager.enabled",
        False,
        True,
        lambda r: [("Certificate", "webhook") in r, PATCH in r, option("--webhook-certificate-dir")(r)],
        [True, False, "/etc/moorings/webhook-certificate"],
    ),
    Row(
        "controller.kubeRbacProxy.enabled",
        False,
        True,
        several(option("--metrics-port"), pod(CONTROLLER, "containers[metrics-guard]")),
        ["9081", None],
    ),
    Row("networkPolicies.create", False, True, lambda r: ("NetworkPolicy", "vipu-proxy") in r, True),
    Row("admissionWebhooks.patch.enabled", True, False, lambda r: [each in r for each in (CREATE, PATCH)], [False] * 2),
    Row("controller.replicas", 1, 2, field(CONTROLLER, "spec.replicas"), 2),
    Row("controller.workers", 16, 9, option("--workers"), "9"),
    Row(
        "controller.metricsPort",
        0,
        9081,
        option("--metrics-port"),
        "9081",
    ),
    Row(
        "controller.metricsCertificateSecret",
        "",
        "tls",
        several(
            option("--certificate-dir", CONTROLLER, "metrics-guard"),
            pod(CONTROLLER, "volumes[metrics-certificate].secret.secretName"),
        ),
        ["/etc/moorings/metrics-certificate", "tls"],
    ),
    Row(
        "controller.podDisruptionBudget.create",
        False,
        True,
        lambda r: ("PodDisruptionBudget", "controller-manager") in r,
        True,
    ),
    Row(
        "vipuProxy.service.httpsPort",
        443,
        8000,
        several(field(("Service", "vipu-proxy"), "spec.ports[https].port"), option("--proxy-url")),
        [8000, f"https://{FULL}-vipu-proxy.{NAMESPACE}.svc:8000"],
    ),
    Row(
        "vipuProxy.proxyHttpsPort",
        8443,
        8444,
        several(proxy_option("--tls-port"), pod(PROXY, IN_PROXY + "ports[https].containerPort")),
        ["8444", 8444],
    ),
    Row("vipuProxy.plainHttp", False, True, proxy_option("--plain-http"), "yes"),
    Row(
        "vipuProxy.replicas",
        1,
        2,
        several(
            field(PROXY, "spec.replicas"),
            proxy_option("--lease-name"),
            proxy_option("--replica-address"),
            lambda r: [rule["verbs"] for rule in r["Role", "vipu-proxy"]["rules"] if rule["resources"] == ["leases"]],
        ),
        [2, f"{FULL}-vipu-proxy", "$(POD_IP)", [["create"], ["get", "update"]]],
    ),
    Row(
        "vipuProxy.accessKeysSecret",
        "",
        "keys",
        several(proxy_option("--access-keys-dir"), pod(PROXY, "volumes[access-keys].secret.secretName")),
        ["/etc/moorings/access-keys", "keys"],
    ),
    Row(
        "vipuProxy.caConfigMap",
        "",
        "ca",
        several(proxy_option("--ca-file"), pod(PROXY, "volumes[ca].configMap.name")),
        ["/etc/moorings/ca/ca.crt", "ca"],
    ),
    Row(
        "vipuProxy.clientCertificateSecret",
        "",
        "tls",
        several(proxy_option("--cert-file"), pod(PROXY, "volumes[client-certificate].secret.secretName")),
        ["/etc/moorings/client-certificate/tls.crt", "tls"],
    ),
    Row(
        "vipuProxy.projects",
        {},
        {"ns": "vision", "other": "audio"},
        several(
            proxy_option("--projects-file"),
            lambda r: ("ConfigMap", "projects") in r and r["ConfigMap", "projects"]["data"]["projects"],
        ),
        ["/etc/moorings/projects/projects", "ns=vision\nother=audio\n"],
    ),
]
