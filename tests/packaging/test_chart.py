"""The chart for Kubernetes, as the real helm renders it: each parameter, what it does, and what the roles allow."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # has no types
import pytest
import yaml

from moorings import __version__
from moorings.app import (
    kubernetes_certgen,
    kubernetes_metrics_guard,
    kubernetes_operator,
    kubernetes_proxy,
    kubernetes_uninstall,
)
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.settings import parse_controllers
from tests.packaging.chart import (
    CHART,
    NAMESPACE,
    RELEASE,
    Obj,
    Rendered,
    default_values,
    nested,
    plain,
    render,
    run_helm,
    value_at,
)
from tests.packaging.parameters import (
    CONTROLLER,
    CREATE,
    FULL,
    HARD,
    MORE,
    PATCH,
    PROXY,
    SECRET,
    TABLE,
    TOLERATION,
    Row,
    names,
    option,
    pod,
)
from tests.pod_security import refused

# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*TABLE, *MORE], ids=lambda row: row.path)
def test_a_parameter_has_its_default_and_another_value_has_its_effect(row: Row) -> None:
    assert value_at(default_values(), row.path) == row.default
    assert row.look(plain()) != row.expected, "it would be the same without the parameter"
    assert row.look(render(nested(row.path, row.other))) == row.expected


def leaves(values: Obj, above: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and value and path != "controller.podSecurityContext":
            yield from leaves(value, f"{path}.")
        else:
            yield path


def test_every_parameter_is_tried_here() -> None:
    tried = {row.path for row in (*TABLE, *MORE)} | {"controller.podDisruptionBudget.minAvailable"}
    tried |= {"networkPolicies.apiServerPorts", "certManager.issuerRef", "admissionWebhooks.patch.image.tag"}
    tried |= {f"controller.kubeRbacProxy.image.{name}" for name in ("pullPolicy", "repository", "tag")}
    assert set(leaves(default_values())) == tried


def documented() -> dict[str, str]:
    """What values.yaml says of each parameter."""
    said: dict[str, str] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text[1:].strip())
            continue
        if text:
            path[(len(line) - len(line.lstrip())) // 2 :] = [text.partition(":")[0]]
            said[".".join(path)] = " ".join(comment)
        comment = []
    return said


def test_the_readme_tells_of_every_parameter_as_values_yaml_does() -> None:
    said, values = documented(), default_values()
    readme = (CHART / "README.md").read_text()
    wanted = [f"| `{path}` | {said[path]} | `{json.dumps(value_at(values, path))}` |" for path in leaves(values)]
    assert [row for row in wanted if row not in readme] == []
    assert all(said[path] for path in leaves(values))
    assert len(re.findall(r"^\| `[a-zA-Z.]+` \|.*\|$", readme, re.MULTILINE)) == len(wanted), "one that is no more"


def test_the_schema_knows_every_parameter() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path in leaves(default_values()):
        at: Obj = schema
        for key in path.split("."):
            assert at.get("additionalProperties") is not True, path
            found = at["properties"].get(key) if "properties" in at else at.get("additionalProperties")
            assert found, f"{path}: {key}"
            at = found


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("admissionWebhooks.failurePolicy", "Maybe", 'must be one of the following: "Fail", "Ignore"'),
        ("admissionWebhooks.timeoutSeconds", 60, "Must be less than or equal to 30"),
        ("controler.replicas", 2, "Additional property controler is not allowed"),
        ("controller.replica", 2, "Additional property replica is not allowed"),
        ("controller.replicas", "two", "controller.replicas: Invalid type. Expected: integer, given: string"),
        ("controller.podAnnotations", {"a": True}, "controller.podAnnotations.a: Invalid type. Expected: string"),
        ("controller.resources.limits.memory", "much", "controller.resources.limits.memory: Does not match pattern"),
        ("controller.tolerations", ["ipu"], "controller.tolerations.0: Invalid type. Expected: object"),
        ("vipuProxy.logLevel", 7, "vipuProxy.logLevel: Must be less than or equal to 6"),
        ("controller.metricsPort", 80, "controller.metricsPort: Must be greater than or equal to 1024"),
        ("vipuProxy.proxyPort", 8443, "vipuProxy.proxyPort and vipuProxy.proxyHttpsPort are both 8443"),
        ("vipuProxy.service.port", 443, "vipuProxy.service.port and vipuProxy.service.httpsPort are both 443"),
        # Not in the release before: helm upgrade --reuse-values leaves them out.
        *(
            (path, None, f"{path.rpartition('.')[2]} is required")
            for path in (
                *("certManager", "networkPolicies", "watchNamespaces"),
                *("jobs.suspendQueued", "jobs.startDeadlineSeconds", "jobs.aggregateRoles"),
                *("controller.kubeRbacProxy", "vipuProxy.replicas", "vipuProxy.plainHttp"),
                *("vipuProxy.proxyHttpsPort", "vipuProxy.service.httpsPort"),
            )
        ),
        ("vipuProxy.proxyPort", 80, "vipuProxy.proxyPort: Must be greater than or equal to 1024"),
        ("global.launcherImagePullPolicy", "Sometimes", "global.launcherImagePullPolicy must be one of"),
        ("global.imageRegistry", "https://r", "global.imageRegistry: Does not match pattern"),
        ("global.imagePullSecrets", [{"nam": "a"}], "global.imagePullSecrets.0: name is required"),
        ("global.vipuControllers", "pod1", '"pod1" is not host:port:key=value, as in pod1:8090:ipunode=pod1'),
        ("vipuControllers", ["a b:1:c=d"], '"a b:1:c=d" is not host:port:key=value'),
    ],
)
def test_nonsense_is_refused_with_a_reason(path: str, value: Any, told: str) -> None:
    done = run_helm("template", RELEASE, str(CHART), values=nested(path, value))
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ""),
        ({"global": {"vipuControllers": ["a:1:k=v", "b:2:k=w"]}}, "a:1:k=v,b:2:k=w"),
        ({"vipuControllers": "a:1:k=v , b:2:k=w,"}, "a:1:k=v,b:2:k=w"),
        ({"global": {"vipuControllers": "a:1:k=v"}, "vipuControllers": "b:2:k=w"}, "a:1:k=v"),
        ({"global": {"vipuControllers": "[fd00::1]:1:site.org/ipu=v"}}, "[fd00::1]:1:site.org/ipu=v"),
    ],
)
def test_controllers_are_named_in_either_place_and_form(values: Obj, expected: str) -> None:
    assert render(values)["ConfigMap", "vipu-controllers"]["data"] == {"vipu-controllers": expected}


HOOKS = f"{FULL}-webhook-certificate"
LONG = "a" * 63
LISTS = [
    "!pod2:8090",
    "pod1:8090:ipunode=pod1,! pod2:8090:ipunode=pod2",
    ["pod1:8090:ipunode=pod1", "!pod2:8090"],
    ["pod1:8090,pod2:8090\n!pod3:8090"],
    "pod1:8090\npod2:8090\n",
    "pod1:8090:",
    "pod1:00080:k=",
    f"{'h' * 253}:1:{'p' * 253}/{LONG}={LONG}",
    "[::1]:1:K_.-1=V_.-1,10.0.0.1:65535",
    [f"pod{number}:1" for number in range(64)],
    [f"pod{number}:1" for number in range(65)],
    "!!pod2:8090",
    "pod1!:8090",
    "!",
    "pod1",
    "pod1:0",
    "pod1:65536",
    "pod1:000080",
    "pod1:x",
    ":8090",
    "-pod1:8090",
    "pod_1_:8090",
    "http://pod1:8090",
    "[::g]:1",
    "[:]:1",
    f"{'h' * 254}:1",
    "pod1:1:key",
    "pod1:1:=value",
    "pod1:1:k=v=w",
    "pod1:1:k=v:w",
    "pod1:1:K.org/k=v",
    "pod1:1:k=-v",
    f"pod1:1:k={LONG}a",
    f"pod1:1:{LONG}a=v",
    "pod1:1:k=v,!pod1:01",
    "pod1:1 :k=v",
]


@pytest.mark.parametrize("given", LISTS, ids=lambda given: str(given)[:40].replace("\n", "|"))
def test_lists_of_controllers_are_taken_just_as_the_proxy_takes_them(given: str | list[str]) -> None:
    text = given if isinstance(given, str) else ",".join(given)
    try:
        expected = parse_controllers(text)
    except MooringsError:
        expected = None
    done = run_helm("template", RELEASE, str(CHART), values=nested("global.vipuControllers", given))
    assert (done.returncode == 0) == (expected is not None), done.stderr
    if expected is None:
        assert "global.vipuControllers: " in done.stderr
    else:
        written = Rendered(done.stdout)["ConfigMap", "vipu-controllers"]["data"]["vipu-controllers"]
        assert parse_controllers(written) == expected


def test_the_command_line_of_the_documentation() -> None:
    """Commas that are escaped, in both spellings, and images with a port."""
    words = ["--set", r"global.vipuControllers=pod1:8090:ipunode=pod1\,pod2:8090:ipunode=pod2"]
    words += ["--set", "controller.image.repository=localhost:5000/c", "--set", "vipuProxy.image.repository=p"]
    rendered = render(None, *words)
    data = rendered["ConfigMap", "vipu-controllers"]["data"]
    assert data == {"vipu-controllers": "pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2"}
    second = render(None, "--set", r"vipuControllers=pod001:8090:ipunode=node1\,pod002:8091:ipunode=node2")
    data = second["ConfigMap", "vipu-controllers"]["data"]
    assert data == {"vipu-controllers": "pod001:8090:ipunode=node1,pod002:8091:ipunode=node2"}


@pytest.mark.parametrize("secrets", [["a", "b"], [{"name": "a"}, {"name": "b"}], [{"name": "a"}, "b"]])
def test_pull_secrets_are_named_in_either_form(secrets: list[Any]) -> None:
    rendered = render({"global": {"imagePullSecrets": secrets}})
    assert pod(PROXY, "imagePullSecrets")(rendered) == [{"name": "a"}, {"name": "b"}]
    assert option("--image-pull-secrets")(rendered) == "a,b"


def test_no_image_comes_from_a_registry_that_is_gone() -> None:
    text = (CHART / "values.yaml").read_text()
    named = re.findall(r"^ *(?:repository|launcherImage): *\"?([^\s\"]*)", text, re.MULTILINE)
    assert sorted({name.partition("/")[0] for name in named}) == ["", "launcher:latest", "localhost:5000", "quay.io"]


def test_the_certificate_jobs_run_in_the_controller_s_image_or_the_one_that_is_named() -> None:
    """The manual's command line names images of controller and proxy alone."""
    rendered = render(None, "--set", "controller.image.repository=r/c")
    named = render({"admissionWebhooks": {"patch": {"image": {"repository": "k8s.gcr.io/certgen"}}}})
    tagged = render({"admissionWebhooks": {"patch": {"image": {"repository": "localhost:5000/w", "tag": "2"}}}})
    for where, name in ((CREATE, "create"), (PATCH, "patch")):
        for shown, image in (
            (rendered, f"r/c:{__version__}"),
            (named, "k8s.gcr.io/certgen:v1.1.1"),
            (tagged, "localhost:5000/w:2"),
        ):
            assert pod(where, f"containers[{name}].image")(shown) == image
        command = rendered.at(*where, f"spec.template.spec.containers[{name}]")["command"]
        assert command == ["python3", "-m", "moorings.app.kubernetes_certgen"]
        assert "command" not in named.at(*where, f"spec.template.spec.containers[{name}]")


def test_a_registry_leaves_images_of_other_places_alone() -> None:
    own = {"launcherImage": "a/launcher:1", "imageRegistry": "r"}
    rendered = render({"global": own, "vipuProxy": {"image": {"repository": "b/proxy", "tag": "3"}}})
    assert option("--launcher-image")(rendered) == "a/launcher:1"
    assert option("--launcher-image-pull-policy")(rendered) == "Never"
    assert pod(PROXY, "containers[vipu-proxy].image")(rendered) == "b/proxy:3"


# -- what is rendered --------------------------------------------------------------------------------------------------

EVERYTHING: Obj = {
    "global": {"imagePullSecrets": ["a"], "kubectlVersion": "1.20.2", "vipuControllers": "a:1:k=v"},
    "jobs": {"privilegedNamespaces": ["a"]},
    "networkPolicies": {"create": True},
    "controller": {
        "podDisruptionBudget": {"create": True},
        "tolerations": TOLERATION,
        "nodeSelector": {"a": "b"},
        "podAnnotations": {"a": "b"},
        "metricsCertificateSecret": "tls",
    },
    "vipuProxy": {
        "accessKeysSecret": "keys",
        "caConfigMap": "ca",
        "clientCertificateSecret": "c",
        "projects": {"a": "b"},
        "tolerations": TOLERATION,
    },
    "admissionWebhooks": {"patch": {"tolerations": TOLERATION, "priorityClassName": "high"}},
}


def test_helm_finds_nothing_to_say_of_the_chart() -> None:
    for values in (None, EVERYTHING):
        done = run_helm("lint", "--strict", str(CHART), values=values or {})
        assert done.returncode == 0, done.stdout
        assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("release", ["1.25", "1.37"])
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["plain", "everything"])
def test_kubernetes_schemas_take_every_object(values: Obj, release: str) -> None:
    for each in render(values, "--kube-version", f"{release}.0").objects:
        kubernetes_validate.validate(each, release, strict=True)


def test_an_object_that_is_wrong_is_noticed() -> None:
    wrong = plain()[CONTROLLER] | {"spec": {**plain()[CONTROLLER]["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


@pytest.mark.parametrize(("release", "version"), [("1.20.2", "policy/v1beta1"), ("1.21.0", "policy/v1")])
def test_the_disruption_budget_is_of_a_version_that_the_cluster_has(release: str, version: str) -> None:
    values = {"controller": {"podDisruptionBudget": {"create": True, "minAvailable": 2}}}
    found = render(values, "--kube-version", release)["PodDisruptionBudget", "controller-manager"]
    assert (found["apiVersion"], found["spec"]["minAvailable"]) == (version, 2)


def test_the_chart_is_of_our_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_names_are_those_of_the_documentation() -> None:
    wanted = {
        "gc-ipu-operator-controller-manager",
        "gc-ipu-operator-vipu-proxy",
        "gc-ipu-operator-vipu-controllers",
        "ipu-partitions-tracker",
        "gc-metrics-reader",
    }
    assert wanted <= names(plain())
    assert len(plain()[CONTROLLER]["spec"]["template"]["spec"]["containers"]) == 2, "READY 2/2"
    reader = plain()["ClusterRole", "gc-metrics-reader"]
    assert reader["metadata"]["labels"]["component"] == "metrics-reader"
    assert reader["rules"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


@pytest.mark.parametrize("name", ["r" * 53, "r"])
def test_names_fit_and_differ_whatever_the_release_is_called(name: str) -> None:
    done = run_helm("template", name, str(CHART), "--set", f"nameOverride={'n' * 40}")
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert all(len(each["metadata"]["name"]) <= 63 for each in found if each["kind"] != "ClusterRole")
    kinds = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(kinds) == len(set(kinds))


def test_webhooks_are_asked_about_ipujobs_alone() -> None:
    for kind, verb in (("MutatingWebhookConfiguration", "mutate"), ("ValidatingWebhookConfiguration", "validate")):
        (hook,) = plain()[kind, "webhook"]["webhooks"]
        (rule,) = hook["rules"]
        assert (rule["apiGroups"], rule["resources"]) == (["graphcore.ai"], ["ipujobs"])
        assert hook["clientConfig"]["service"]["path"] == f"/{verb}-graphcore-ai-v1alpha1-ipujob"
        assert hook["sideEffects"] == "None"


def test_the_certificate_jobs_speak_as_kube_webhook_certgen() -> None:
    name, secret = f"{FULL}-webhook", f"{FULL}-webhook-certificate"
    assert pod(CREATE, "containers[create].args")(plain()) == [
        "create",
        f"--host={name},{name}.{NAMESPACE}.svc",
        f"--namespace={NAMESPACE}",
        f"--secret-name={secret}",
    ]
    assert pod(PATCH, "containers[patch].args")(plain()) == [
        "patch",
        f"--webhook-name={name}",
        f"--namespace={NAMESPACE}",
        "--patch-mutating=true",
        "--patch-validating=true",
        f"--secret-name={secret}",
        "--patch-failure-policy=Fail",
    ]
    assert option("--webhook-secret")(plain()) == secret
    for where, hook in ((CREATE, "pre-install,pre-upgrade"), (PATCH, "post-install,post-upgrade")):
        assert plain()[where]["metadata"]["annotations"]["helm.sh/hook"] == hook


def words(rendered: Rendered, where: tuple[str, str], number: int = 0) -> list[str]:
    """What a container's program is given."""
    found: list[str] = rendered[where]["spec"]["template"]["spec"]["containers"][number]["args"]
    return found


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["plain", "everything"])
def test_our_programs_take_what_the_chart_gives_them(values: Obj) -> None:
    rendered = render(values)
    for where in (CREATE, PATCH):
        given = kubernetes_certgen.make_parser().parse_args(words(rendered, where))
        assert given.secret_name == f"{FULL}-webhook-certificate"
    operator = kubernetes_operator.build_parser().parse_args(words(rendered, CONTROLLER))
    assert operator.lease_name == f"{FULL}-controller-manager"
    proxy = kubernetes_proxy.make_parser({}).parse_args(words(rendered, PROXY))
    assert (proxy.tls_port, proxy.tls_secret, proxy.tls_configmap) == (8443, SECRET, operator.proxy_ca_configmap)
    assert proxy.operator_account == f"system:serviceaccount:{NAMESPACE}:{FULL}-controller-manager"
    guard = kubernetes_metrics_guard.make_parser().parse_args(words(rendered, CONTROLLER, 1))
    assert guard.metrics_socket == operator.metrics_socket == "/run/moorings/metrics.sock"
    for container in rendered[CONTROLLER]["spec"]["template"]["spec"]["containers"]:
        assert "metrics" in [
            mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/run/moorings"
        ]
    assert pod(CONTROLLER, "volumes[metrics].emptyDir")(rendered), "a folder of these two alone"
    assert operator.metrics_port == 0, "on 127.0.0.1 of a node everybody there would read them"
    assert operator.account == proxy.operator_account.removeprefix("system:serviceaccount:")
    hook = kubernetes_uninstall.make_parser().parse_args(words(rendered, ("Job", "uninstall")))
    assert (hook.lease_name, hook.webhook_name) == (operator.lease_name, operator.webhook_name)
    assert (hook.webhook_secret, hook.proxy_secret) == (operator.webhook_secret, proxy.tls_secret)
    labels = rendered[CONTROLLER]["spec"]["template"]["metadata"]["labels"]
    assert {name: labels[name] for name in labels if f"{name}={labels[name]}" in hook.selector.split(",")} == (
        rendered[CONTROLLER]["spec"]["selector"]["matchLabels"]
    )


def test_containers_run_modules_that_are_there() -> None:
    ours = (kubernetes_operator, kubernetes_metrics_guard, kubernetes_proxy, kubernetes_uninstall)
    modules = (*ours, *[kubernetes_certgen] * 2)  # before an installation, and after it
    commands = [["python3", "-m", module.__name__] for module in modules]
    found = [c["command"] for _, spec in pods(plain()) for c in spec["containers"] if "command" in c]
    assert sorted(found) == sorted(commands)


def test_the_tracker_stays() -> None:
    tracker = plain()["ConfigMap", "ipu-partitions-tracker"]
    assert tracker["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "data" not in tracker, "helm would write over it"


# -- cert-manager and kube-rbac-proxy ----------------------------------------------------------------------------------

# What is documented at https://cert-manager.io/docs/reference/api-docs (v1) and by kube-rbac-proxy's --help.
ISSUER_SPEC = {"selfSigned": dict, "ca": dict}
CERTIFICATE_SPEC = {
    "secretName": str,
    "issuerRef": dict,
    "commonName": str,
    "dnsNames": list,
    "isCA": bool,
    "duration": str,
    "usages": list,
    "privateKey": dict,
}
GUARD_FLAGS = {"secure-listen-address", "upstream", "allow-paths", "tls-cert-file", "tls-private-key-file"}
OTHERS: Obj = {"certManager": {"enabled": True}, "controller": {"kubeRbacProxy": {"enabled": True}}}


def test_cert_manager_is_asked_in_its_own_words_and_makes_both_certificates() -> None:
    rendered = render(OTHERS)
    made = [each for each in rendered.objects if each["apiVersion"].startswith("cert-manager.io/")]
    for each in made:
        assert (each["apiVersion"], each["metadata"]["namespace"]) == ("cert-manager.io/v1", NAMESPACE)
        known = ISSUER_SPEC if each["kind"] == "Issuer" else CERTIFICATE_SPEC
        assert all(isinstance(value, known[name]) for name, value in each["spec"].items()), each
    certificates = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "Certificate"}
    issuers = {each["metadata"]["name"]: each["spec"] for each in made if each["kind"] == "Issuer"}
    for where, volume, service in (
        (CONTROLLER, "webhook-certificate", "webhook"),
        (PROXY, "certificate", "vipu-proxy"),
    ):
        spec = certificates[f"{FULL}-{service}"]
        assert pod(where, f"volumes[{volume}].secret.secretName")(rendered) == spec["secretName"]
        assert spec["dnsNames"][0] == f"{FULL}-{service}.{NAMESPACE}.svc", "as it is called"
        authority = issuers[spec["issuerRef"]["name"]]["ca"]["secretName"]
        assert certificates[f"{FULL}-authority"]["secretName"] == authority
    assert certificates[f"{FULL}-authority"]["isCA"] is True
    assert issuers[certificates[f"{FULL}-authority"]["issuerRef"]["name"]] == {"selfSigned": {}}
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = rendered[kind, "webhook"]["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{FULL}-webhook"}
    touched = {
        name for _, _, rule in rules(rendered) for name in rule.get("resources", ()) if "delete" not in rule["verbs"]
    }
    assert not {"secrets", "mutatingwebhookconfigurations"} & touched, "nobody else writes them then"
    operator = kubernetes_operator.build_parser().parse_args(words(rendered, CONTROLLER))
    proxy = kubernetes_proxy.make_parser({}).parse_args(words(rendered, PROXY))
    assert str(operator.webhook_certificate_dir) == "/etc/moorings/webhook-certificate"
    assert (proxy.tls_dir, proxy.tls_secret) == ("/etc/moorings/certificate", "")


def test_another_issuer_is_taken_in_place_of_an_authority_of_our_own() -> None:
    issuer = {"name": "site", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    rendered = render({"certManager": {"enabled": True, "issuerRef": issuer}})
    made = [each for each in rendered.objects if each["apiVersion"].startswith("cert-manager.io/")]
    assert [each["spec"]["issuerRef"] for each in made] == [issuer, issuer]


def test_kube_rbac_proxy_stands_where_our_guard_would() -> None:
    rendered = render(OTHERS | {"controller": {**OTHERS["controller"], "metricsCertificateSecret": "tls"}})
    given = rendered.args(*CONTROLLER, "kube-rbac-proxy")
    assert {name.removeprefix("--") for name in given} == GUARD_FLAGS
    assert given["--upstream"] == f"http://127.0.0.1:{option('--metrics-port')(rendered)}/"
    assert pod(CONTROLLER, "containers[kube-rbac-proxy].ports[metrics].containerPort")(rendered) == 8443
    others = [each for each in rendered.objects if not each["apiVersion"].startswith("cert-manager.io/")]
    for each in others:
        kubernetes_validate.validate(each, "1.37", strict=True)


# -- security ----------------------------------------------------------------------------------------------------------


def pods(rendered: Rendered) -> Iterator[tuple[str, Obj]]:
    for each in rendered.objects:
        if each["kind"] in ("Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def test_our_own_pods_are_closed() -> None:
    found = dict(pods(render(EVERYTHING)))
    assert len(found) == 5
    for name, spec in found.items():
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 0, name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == HARD, name
        for volume in spec.get("volumes", ()):
            assert "hostPath" not in volume, name


@pytest.mark.parametrize("more", [{}, {"controller": {"hostNetwork": False, "kubeRbacProxy": {"enabled": True}}}])
def test_pod_security_takes_our_own_pods(more: Obj) -> None:
    """At its strictest level, and, by the defaults, but for the node's network of the operator."""
    found = {name: refused(spec) for name, spec in pods(render({"vipuProxy": {"replicas": 2}, **more}))}
    assert len(found) == 5
    assert {name: why for name, why in found.items() if why} == (
        {} if more else {f"{FULL}-controller-manager": ["hostNetwork", "manager: hostPort", "metrics-guard: hostPort"]}
    )


def rules(rendered: Rendered) -> Iterator[tuple[str, str, Obj]]:
    for each in rendered.objects:
        if each["kind"] in ("Role", "ClusterRole"):
            for rule in each["rules"]:
                yield each["kind"], each["metadata"]["name"], rule


def test_roles_have_no_wildcards() -> None:
    found = list(rules(render(EVERYTHING)))
    assert len(found) > 15
    for _, name, rule in found:
        for words in rule.values():
            assert not [word for word in words if "*" in word], name
        assert not {"escalate", "impersonate"} & set(rule["verbs"]), name
        assert "bind" not in rule["verbs"] or rule["resourceNames"] == [f"{FULL}-controller-manager-launchers"]
        assert "deletecollection" not in rule["verbs"] or name == f"{FULL}-ipujobs-edit", "only what people may"
    for each in plain().objects:
        if each["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            assert each["roleRef"]["name"].startswith(FULL), "a role of our own"


def test_the_only_secrets_are_our_certificates() -> None:
    secrets = {
        "controller-manager": {HOOKS},
        "webhook-hooks": {HOOKS},
        "vipu-proxy": {SECRET},
        "uninstall": {HOOKS, SECRET},
    }
    for kind, name, rule in rules(render(EVERYTHING)):
        if "secrets" in rule.get("resources", ()):
            assert kind == "Role", name
            limited = set(rule.get("resourceNames", ())) == secrets[name.removeprefix(f"{FULL}-")]
            assert limited or rule["verbs"] == ["create"], name


def test_webhook_configurations_leases_and_scales_are_named() -> None:
    guarded = {"mutatingwebhookconfigurations", "validatingwebhookconfigurations", "leases", "deployments/scale"}
    for _, name, rule in rules(plain()):
        if guarded & set(rule.get("resources", ())):
            assert rule.get("resourceNames") or rule["verbs"] == ["create"], name


def held(rendered: Rendered, kind: str, *roles: str) -> set[tuple[str, str, str]]:
    """What some roles let do with any object: group, resource, verb."""
    return {
        (group, resource, verb)
        for found, name, rule in rules(rendered)
        if found == kind and name in {f"{FULL}-{role}" for role in roles} and "resourceNames" not in rule
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


GRANTED = {("", "pods", verb) for verb in ("get", "list", "watch")} | {("", "pods/exec", "create")}
IN_NAMESPACES: Obj = {"watchNamespaces": ["a", "b"]}


def test_the_operator_can_come_by_what_a_launcher_s_role_grants() -> None:
    everywhere = held(plain(), "ClusterRole", "controller-manager")
    assert everywhere.isdisjoint({("", "pods/exec", "create")}), "only where it has bound itself"
    assert GRANTED <= everywhere | held(plain(), "ClusterRole", "controller-manager-launchers")
    (bound,) = [rule for _, _, rule in rules(plain()) if "bind" in rule["verbs"]]
    assert bound["resourceNames"] == [option("--launcher-role")(plain())] == [f"{FULL}-controller-manager-launchers"]
    assert GRANTED <= held(render(IN_NAMESPACES), "Role", "controller-manager-jobs")


@pytest.mark.parametrize("resource", ["configmaps", "services", "serviceaccounts", "rolebindings", "pods"])
@pytest.mark.parametrize("values", [{}, IN_NAMESPACES], ids=["everywhere", "namespaces"])
def test_the_operator_may_change_nothing_but_what_changes(values: Obj, resource: str) -> None:
    rendered = render(values)
    found = held(rendered, "ClusterRole", "controller-manager") | held(rendered, "Role", "controller-manager-jobs")
    assert {verb for _, name, verb in found if name == resource}.isdisjoint({"update", "patch"})


def test_in_namespaces_the_operator_has_no_right_elsewhere() -> None:
    """But for what is in no namespace: nodes and PriorityClasses, which it only reads, and who somebody is."""
    rendered = render(IN_NAMESPACES)
    everywhere = held(rendered, "ClusterRole", "controller-manager")
    assert {name for _, name, _ in everywhere} == {
        "nodes",
        "priorityclasses",
        "tokenreviews",
        "subjectaccessreviews",
    }
    read = {verb for _, name, verb in everywhere if name in ("nodes", "priorityclasses")}
    assert read == {"get", "list", "watch"}
    assert held(rendered, "ClusterRole", "uninstall") == set()
    places = [
        one["metadata"]["namespace"] for one in rendered.objects if one["metadata"]["name"].endswith("-manager-jobs")
    ]
    assert sorted(places) == ["a", "a", "b", "b"], "a Role and its binding"


def test_every_rule_says_what_it_is_for() -> None:
    found = 0
    for file in sorted((CHART / "templates").rglob("*.yaml")):
        for above, line in itertools.pairwise(file.read_text().splitlines()):
            if line.startswith(("  - apiGroups: [", "  - nonResourceURLs: [")):
                found += 1
                assert above.startswith("  # "), f"{file.name}: {line}"
    several = render({"vipuProxy": {"replicas": 2}})
    assert found == len(list(rules(several)))


CONTROLLERS = ["pod1:8090:ipunode=pod1", "!pod2:8091", "[fd00::1:2]:8092:k=v"]


def test_network_policies_let_through_what_is_needed_alone() -> None:
    values = {"networkPolicies": {"create": True, "apiServerPorts": [7443]}, "vipuControllers": CONTROLLERS}
    rendered = render(values)
    policies = {one["metadata"]["name"]: one["spec"] for one in rendered.objects if one["kind"] == "NetworkPolicy"}
    selected = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in rendered.objects
        if "template" in one.get("spec", {})
    }
    opened = {
        name: [
            {port["port"] for entry in policies[f"{FULL}-{name}"].get(way, ()) for port in entry["ports"]}
            for way in ("ingress", "egress")
        ]
        for name in ("vipu-proxy", "controller-manager", "hooks")
    }
    asked = {53, 5353, 7443}
    assert opened == {
        "vipu-proxy": [{"https"}, asked | {8090, 8091, 8092}],
        "controller-manager": [{"webhook", "metrics"}, asked | {"https"}],
        "hooks": [set(), asked],
    }
    for name, policy in policies.items():
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert any(applies(policy["podSelector"], labels) for labels in selected.values()), name
    for name, labels in selected.items():
        assert sum(applies(policy["podSelector"], labels) for policy in policies.values()) == 1, name
    plain_http = render(values | {"vipuProxy": {"plainHttp": True}})["NetworkPolicy", "vipu-proxy"]
    assert [port["port"] for port in plain_http["spec"]["ingress"][0]["ports"]] == ["https", "http"]


def applies(selector: Obj, labels: Obj) -> bool:
    """Whether a selector of labels selects these."""
    wanted = [(name, [value]) for name, value in selector.get("matchLabels", {}).items()]
    wanted += [(one["key"], one["values"]) for one in selector.get("matchExpressions", ())]
    return all(labels.get(name) in allowed for name, allowed in wanted)


# -- notes -------------------------------------------------------------------------------------------------------------


def notes(tmp_path: Path, values: Obj | None = None) -> str:
    """NOTES.txt, which helm shows only when it installs."""
    chart = tmp_path / "chart"
    if not chart.exists():
        shutil.copytree(CHART, chart)
        (chart / "templates" / "shown.yaml").write_text(
            'shown: |\n  {{- include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}\n'
        )
    done = run_helm("template", RELEASE, str(chart), "-n", NAMESPACE, "-s", "templates/shown.yaml", values=values or {})
    assert done.returncode == 0, done.stderr
    shown: str = yaml.safe_load(done.stdout)["shown"]
    return shown


def test_the_notes_warn_of_what_an_admin_must_know(tmp_path: Path) -> None:
    shown = notes(tmp_path)
    assert "being root on the nodes" in shown
    assert "WARNING: without a controller no IPUJob gets a partition" in shown
    assert "kubectl edit configmap gc-ipu-operator-vipu-controllers --namespace ipus" in shown
    assert "CRDs/graphcore.ai_ipujobs.yaml" in shown
    quiet = notes(tmp_path, EVERYTHING | {"clusterName": "c1", "global": EVERYTHING["global"] | {"imageRegistry": "r"}})
    assert "being root on the nodes" not in quiet
    assert "kubectl label nodes <node> k=v" in quiet
    assert quiet.count("WARNING") == 1, "that this machine's cluster knows no IPUJobs"
    assert "travel in clear" not in shown
    assert "https://gc-ipu-operator-vipu-proxy.ipus.svc:443/stats" in shown
    clear = "WARNING: access keys travel in clear to the controllers"
    assert clear in notes(tmp_path, {"vipuProxy": {"accessKeysSecret": "keys"}})
    assert clear not in shown
    assert clear not in quiet
    listed = notes(tmp_path, {"vipuControllers": ["a:1:k=v", "b:2", "!c:3", "!d:4:k=w"]})
    assert re.findall(r"kubectl label nodes <node> (.*)", listed) == ["k=v"]
    assert "No label is named with b:2: its Pods go to any node" in listed
    assert "no IPUJob gets a partition" not in listed
    assert "no IPUJob gets a partition" in notes(tmp_path, {"vipuControllers": "!c:3"})
    assert "the image of controller and vipuProxy is pulled from localhost:5000" in shown
    assert "localhost:5000" not in notes(tmp_path, {"global": {"imageRegistry": "r"}})
    safe = notes(tmp_path, {"jobs": {"privileged": False, "hostNetwork": False}})
    assert "being root on the nodes" not in safe
