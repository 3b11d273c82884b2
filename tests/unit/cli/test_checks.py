"""What the doctor says of what was seen."""

import pytest

from moorings.cli import checks
from moorings.doctor.findings import CheckStatus
from moorings.wire.shapes import VersionBody
from tests.unit.cli import samples


@pytest.mark.parametrize(
    ("mode", "owner", "verdict"),
    [
        (0o100600, 7, CheckStatus.PASS),
        (0o100644, 7, CheckStatus.FAIL),
        (0o100600, 8, CheckStatus.FAIL),
        (None, 0, CheckStatus.SKIP),
    ],
)
def test_credentials(tmp_path, mode, owner, verdict):
    finding = checks.check_credentials(tmp_path / "c.toml", mode, owner, 7)
    assert finding.verdict is verdict
    assert finding.fix or verdict is CheckStatus.PASS


@pytest.mark.parametrize(
    ("secure", "host", "verdict"),
    [(True, "far", CheckStatus.PASS), (False, "127.0.0.1", CheckStatus.PASS), (False, "far", CheckStatus.WARN)],
)
def test_transport(secure, host, verdict):
    assert checks.check_transport(secure, host).verdict is verdict


@pytest.mark.parametrize(
    ("version", "api", "verdict"),
    [
        ("0.1.9", "moorings/v1", CheckStatus.PASS),
        ("9.0.0", "moorings/v1", CheckStatus.WARN),
        ("9.0.0", "moorings/v2", CheckStatus.FAIL),
    ],
)
def test_version(version, api, verdict):
    assert checks.check_version(VersionBody(version=version, api_version=api, installation="i")).verdict is verdict


def test_pools():
    found = list(checks.check_pools(samples.POOLS))
    assert [(finding.id, finding.verdict) for finding in found] == [
        ("pools.pod256", CheckStatus.PASS),
        ("pools.wse", CheckStatus.FAIL),
    ]
    assert "no answer" in found[1].evidence
    assert [finding.verdict for finding in checks.check_pools(())] == [CheckStatus.FAIL]


def test_devices():
    foreign = samples.device(40, partition="theirs", reason="used by partition 'theirs', made outside Moorings")
    service, strangers = checks.check_devices([*samples.DEVICES, foreign])
    assert service.verdict is CheckStatus.WARN
    assert "pod64:8 (link errors (root))" in service.evidence
    assert strangers.verdict is CheckStatus.WARN
    assert "1 are in partitions made outside Moorings: theirs" in strangers.evidence
    assert "vendor" in strangers.fix
    assert [finding.verdict for finding in checks.check_devices(samples.DEVICES[:4])] == [
        CheckStatus.PASS,
        CheckStatus.PASS,
    ]


def test_nobody_is_told_to_remove_what_carries_our_mark():
    """A job of after a restored backup may run on it."""
    spared = samples.device(41, partition="spared", reason="used by partition 'spared', which no record knows")
    _, strangers = checks.check_devices([spared])
    assert "1 are in partitions that no record knows: spared" in strangers.evidence
    assert "leave spared" in strangers.fix
    assert "vendor" not in strangers.fix


@pytest.mark.parametrize(
    ("files", "opened", "verdict", "evidence"),
    [
        ([], [], CheckStatus.PASS, "this machine has no device files"),
        (["/dev/nvidia0"], [], CheckStatus.PASS, "1 device files that belong to jobs do not open here"),
        (["/dev/nvidia0", "/dev/nvidia1"], ["/dev/nvidia1"], CheckStatus.FAIL, "opens /dev/nvidia1, which"),
    ],
)
def test_a_login_that_opens_jobs_devices_is_a_fault(files, opened, verdict, evidence):
    found = checks.check_login(files, opened)
    assert (found.verdict, evidence in found.evidence) == (verdict, True), found
