"""Where credentials come from, and when they are asked for again."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
import yaml
from lightkube.core.exceptions import ConfigError

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.kubeconfig import TokenSource, load_credentials, parse_exec
from tests.kubernetes.pki import Authority


def config(server: str, user: dict, context: str = "c", **more) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": context, "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        **more,
    }


def write(file: Path, document: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def cluster_ca(tmp_path) -> str:
    return Authority(tmp_path, "test-ca").certificate.read_text()


def asked(identity: TokenSource | None, refusals: int = 0) -> list[str]:
    """What is sent, when it is refused so many times."""
    assert identity is not None

    async def ask() -> list[str]:
        sent = [await identity.header()]
        for _ in range(refusals):
            sent.append(await identity.header(sent[-1]))
        return sent

    return asyncio.run(ask())


def test_a_named_file_comes_first_then_the_variable_then_our_pod_then_the_home(tmp_path):
    home = tmp_path / "home"
    write(home / ".kube" / "config", config("https://home", {"token": "t"}, **{"current-context": "c"}))
    other = write(tmp_path / "other", config("https://other", {"token": "t"}, **{"current-context": "c"}))
    named = write(tmp_path / "named", config("https://named", {"token": "t"}, **{"current-context": "c"}))
    account = tmp_path / "account"
    write(account / "token", "x")
    (account / "namespace").write_text("ours\n")
    environment = {"HOME": str(home)}
    pod = {**environment, "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert load_credentials(environment, account=str(account)).server == "https://home"
    assert load_credentials({**pod, "KUBECONFIG": str(other)}, account=str(account)).server == "https://other"
    assert load_credentials({**pod, "KUBECONFIG": str(other)}, path=str(named)).server == "https://named"


def test_in_a_pod_the_rotating_token_is_read_again_when_it_is_refused(tmp_path, cluster_ca):
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_text(cluster_ca)
    (account / "namespace").write_text("ours\n")
    (account / "token").write_text("old")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = load_credentials(environment, account=str(account))
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "ours")
    assert asked(found.identity) == ["Bearer old"]
    (account / "token").write_text("new")
    assert asked(found.identity, refusals=1) == ["Bearer old", "Bearer new"]
    assert asked(found.identity) == ["Bearer new"]


def test_several_files_are_merged_and_paths_count_from_their_own_file(tmp_path):
    contexts = {"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}]}
    first = write(tmp_path / "a" / "config", {"current-context": "c", **contexts, "clusters": [], "users": None})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "token").write_text("from-b")
    second = write(tmp_path / "b" / "config", config("https://b", {"tokenFile": "token"}, "other"))
    found = load_credentials({"KUBECONFIG": f"{first}:{tmp_path / 'none'}:{second}"})
    assert (found.server, found.namespace) == ("https://b", "n")
    assert asked(found.identity) == ["Bearer from-b"]
    assert load_credentials({"KUBECONFIG": f"{first}:{second}"}, context="other").namespace == "team"


@pytest.mark.parametrize(
    "text",
    ["", "}{", "[]", "7", "users: []", "clusters: [{}]\nusers: []\ncontexts: []", "current-context: c\ncontexts: 7"],
)
def test_a_damaged_file_is_refused_in_words(tmp_path, text):
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(MooringsError) as caught:
        load_credentials({"KUBECONFIG": str(file)})
    assert caught.value.code == "kubernetes.not_configured"
    assert str(file) in caught.value.detail


def test_a_token_is_in_no_message(tmp_path):
    file = tmp_path / "config"
    file.write_text("users: [{name: u, user: {token: hunter2}}\n  - }{")
    with pytest.raises(MooringsError) as caught:
        load_credentials({"KUBECONFIG": str(file)})
    assert "hunter2" not in caught.value.detail


def test_nothing_at_all_says_what_to_do(tmp_path):
    with pytest.raises(MooringsError) as caught:
        load_credentials({"HOME": str(tmp_path)})
    assert caught.value.code == "kubernetes.not_configured"
    assert "KUBECONFIG" in caught.value.hint


# -- plugins -------------------------------------------------------------------------------------------------------


def plugin(folder: Path, status: str, version: str = "v1") -> dict:
    """A plugin that counts its runs and says who asked."""
    file = folder / "plugin"
    answer = f'{{"apiVersion": "client.authentication.k8s.io/{version}", "kind": "ExecCredential", "status": {status}}}'
    file.write_text(
        f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" >> "{folder}/runs"\nn=$(wc -l < "{folder}/runs")\n'
        f"printf '%s' '{answer}' | sed \"s/NUMBER/$n/\"\n"
    )
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": f"client.authentication.k8s.io/{version}", "command": "./plugin", "args": ["x"]}}


def identity_of(tmp_path: Path, user: dict) -> TokenSource | None:
    file = write(tmp_path / "config", config("https://k", user, **{"current-context": "c"}))
    return load_credentials({"KUBECONFIG": str(file), "PATH": "/usr/bin:/bin"}).identity


@pytest.mark.parametrize(
    ("user", "header"),
    [({"token": "t"}, "Bearer t"), ({"username": "u", "password": "p:q"}, "Basic dTpwOnE=")],
    ids=["token", "password"],
)
def test_what_stands_in_the_file_is_sent_and_stays_the_same(tmp_path, user, header):
    assert asked(identity_of(tmp_path, user), refusals=1) == [header, header]


def test_a_certificate_says_it_all(tmp_path):
    assert identity_of(tmp_path, {}) is None


def test_a_way_that_kubernetes_took_away_is_refused_with_another(tmp_path):
    with pytest.raises(MooringsError, match="use an exec plugin"):
        identity_of(tmp_path, {"auth-provider": {"name": "gcp"}})


def test_a_token_s_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"token\.txt cannot be read: no such file"):
        asked(identity_of(tmp_path, {"tokenFile": str(tmp_path / "token.txt")}))


def test_a_plugin_is_asked_once_and_again_when_its_token_is_refused(tmp_path):
    identity = identity_of(tmp_path, plugin(tmp_path, '{"token": "tNUMBER"}'))
    assert asked(identity) == ["Bearer t1"]
    assert asked(identity) == ["Bearer t1"]
    assert asked(identity, refusals=1) == ["Bearer t1", "Bearer t2"]
    info = json.loads((tmp_path / "runs").read_text().splitlines()[0])
    assert info == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


def test_a_token_that_has_ended_is_not_sent(tmp_path):
    over = '{"token": "tNUMBER", "expirationTimestamp": "2020-01-01T00:00:00Z"}'
    identity = identity_of(tmp_path, plugin(tmp_path, over, "v1beta1"))
    assert asked(identity) + asked(identity) == ["Bearer t1", "Bearer t2"]


def test_a_plugin_that_fails_is_named(tmp_path):
    user = plugin(tmp_path, "{}")
    (tmp_path / "plugin").write_text("#!/bin/sh\necho no login >&2\nexit 3\n")
    with pytest.raises(ConfigError, match="ended with 3: no login"):
        asked(identity_of(tmp_path, user))


def test_a_plugin_of_a_version_to_come_is_refused(tmp_path):
    with pytest.raises(MooringsError) as caught:
        identity_of(tmp_path, plugin(tmp_path, "{}", "v9"))
    assert caught.value.code == "kubernetes.not_configured"


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"{}",
        b"[]",
        b'{"status": {}}',
        b'{"status": 7}',
        b'{"status": {"token": "t", "expirationTimestamp": "soon"}}',
    ],
)
def test_what_a_plugin_must_not_print_is_refused(printed):
    with pytest.raises(ConfigError):
        parse_exec(printed)
