"""What ``moor`` of an earlier release wrote for its user, and what a controller told it, is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moorings.cli.csctl import install
from moorings.cli.processes import parse_record
from moorings.pki.folder import CertificateStore
from moorings.terminal.configuration import load_configuration
from tests.released.site import NAMES, ReleasedSite


@pytest.fixture(params=NAMES, scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReleasedSite:
    return ReleasedSite(request.param, tmp_path_factory.mktemp("site"))


def test_configuration_and_credentials_are_read(site: ReleasedSite, tmp_path: Path) -> None:
    given = {"HOME": str(site.folder / "home"), "MOORINGS_CREDENTIALS": str(site.folder / "credentials.toml")}
    found = load_configuration({}, given, system_file=tmp_path / "none")
    assert found.text("context") == "default"
    assert found.text("server").startswith("http://127.0.0.1:")
    assert found.text("access_key")
    assert "config.toml" in found.values["context"].origin


def test_a_controllers_record_is_read(site: ReleasedSite) -> None:
    text = (site.folder / "data" / "controller.json").read_text()
    running = parse_record(text)
    assert running is not None
    told = json.loads(text)
    assert (running.pid, running.start_ticks, running.url) == (told["pid"], told["startTicks"], told["url"])


def test_a_folder_of_certificates_is_read(site: ReleasedSite) -> None:
    entries = CertificateStore(site.folder / "home" / ".config" / "moorings" / "pki").entries()
    assert [(one.kind, one.is_current, one.key_matches) for one in entries] == [
        ("authority", True, True),
        ("server", True, True),
        ("client", True, True),
    ]


def test_a_csctl_of_a_release_is_known_as_ours(site: ReleasedSite) -> None:
    assert install(site.folder / "home" / "bin").exists()
