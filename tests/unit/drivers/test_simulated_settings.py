import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import parse_pools
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo
from moorings.drivers.simulated.settings import SimulatedSettings
from tests.cases import cases
from tests.unit.drivers.simulated_rig import SimulatedRig

POOL = """\
[[pool]]
name = "pod64"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domain_size = 64 }
[pool.simulated]
"""


def read(lines: str) -> SimulatedSettings:
    (entry,) = parse_pools(POOL + lines, source="pools.toml")
    return SimulatedSettings.read(entry.settings)


def test_nothing_said_means_the_defaults():
    assert read("") == SimulatedSettings()


def test_every_setting_is_read():
    settings = SimulatedSettings(
        provision_s=1.5,
        provision_per_device_s=2,
        reset_s=3,
        reset_per_device_s=4,
        remove_s=5,
        remove_per_device_s=6,
        seed=-7,
        restart="lost",
        api_host="vipu.example.org",
        api_port=9090,
        api_timeout_s=300,
        clusters=2,
        name_chars_max=30,
    )
    lines = [f"{key} = {getattr(settings, key)!r}" for key in SimulatedSettings.__dataclass_fields__]
    assert read("\n".join(lines)) == settings


@cases(
    ("line", "problem"),
    [
        ("provision_s = -1", "provision_s = -1.0 is not between 0 and 86400 seconds"),
        ("remove_s = nan", "remove_s = nan is not between"),
        ("reset_s = inf", "reset_s = inf is not between"),
        ('reset_s = "fast"', "reset_s must be a number"),
        ("seed = 1.5", "seed must be a whole number"),
        ('restart = "maybe"', "restart = 'maybe' is not known"),
        ('api_host = "a b"', "api_host = 'a b' is not a host name"),
        ("api_port = 65536", "api_port = 65536 is not between 1 and 65535"),
        ("clusters = 0", "clusters = 0 is not between"),
        ("name_chars_max = 0", "name_chars_max = 0 is not between"),
        ("provision_sec = 1", "'provision_sec' is not known here"),
    ],
)
def test_a_bad_value_is_told_with_file_and_line(line, problem):
    with pytest.raises(MooringsError) as caught:
        read(f"# a remark\n{line}")
    assert caught.value.code == "pools.invalid"
    assert caught.value.detail.startswith("pools.toml:8: ")
    assert problem in caught.value.detail


@pytest.mark.parametrize(
    ("topology", "clusters", "problem"),
    [
        (PowerOfTwo(4, 64, 64), 3, "256 devices cannot be divided evenly among 3 clusters"),
        (PowerOfTwo(4, 64, 256), 2, "some blocks would lie in two of the 2 clusters"),
        (AnySubset(8, 4), 2, "some blocks would lie in two of the 2 clusters"),
        (Catalogue(8, (Block.parse("0-1"), Block.parse("3-4"))), 2, "some blocks would lie in two of the 2 clusters"),
    ],
)
def test_a_pool_whose_partitions_would_lie_in_two_clusters_is_refused(tmp_path, topology, clusters, problem):
    rig = SimulatedRig(tmp_path, SimulatedSettings(clusters=clusters), topology=topology)
    with pytest.raises(MooringsError, match=problem) as caught:
        rig.restart()
    assert caught.value.code == "pools.invalid"


@pytest.mark.parametrize("topology", [PowerOfTwo(4, 64, 128), Catalogue(8, (Block.parse("0-3"), Block.parse("4,7")))])
def test_a_pool_whose_partitions_fit_into_clusters_is_taken(tmp_path, topology):
    rig = SimulatedRig(tmp_path, SimulatedSettings(clusters=2), topology=topology)
    assert rig.restart().capability.details["clusters"] == "2"
    rig.kill()
