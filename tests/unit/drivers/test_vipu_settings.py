"""``[pool.vipu]`` is read strictly, and what it may hold is what the page says."""

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import parse_pools
from moorings.drivers.vipu.settings import VipuSettings
from tests.cases import cases

POOL = """\
[[pool]]
name = "pod64"
kind = "ipu"
driver = "vipu"
topology = { type = "power-of-two", domain_size = 64 }
[pool.vipu]
"""


def read(text: str) -> VipuSettings:
    (entry,) = parse_pools(POOL + text)
    return VipuSettings.read(entry.settings)


def test_nothing_must_be_said():
    assert read("") == VipuSettings()
    assert VipuSettings().api_port == 8090


def test_everything_can_be_said():
    settings = read(
        """
api_host = "10.1.3.101"
api_port = 8091
command = "/opt/vipu/bin/vipu"
timeout_s = 600
question_timeout_s = 0.5
parallel = 1
api_user = "moorings"
api_key_file = "/etc/moorings/pki/vipu.key"
client_cert_file = "/c"
client_key_file = "/k"
server_cert_file = "/s"
allocation = "alloc-1"
cluster = "c64_1-16"
ipu_keys = ["agent", "index"]
reconfigurable = false
create_arguments = ["--index", "{index}"]
ipuof = "api"
ipuof_option = "--ipu-configs"
ipuof_timeout_s = 3600
"""
    )
    assert settings.secret_files == {"api_key_file": "/etc/moorings/pki/vipu.key", "client_key_file": "/k"}
    assert (settings.ipuof, settings.cluster, settings.timeout_s) == ("api", "c64_1-16", 600)


@cases(
    ("text", "problem"),
    [
        ('api_hosts = "a"', "'api_hosts' is not known here"),
        ('api_host = "a b"', "is not a host name"),
        ("api_port = 0", "is not between 1 and 65535"),
        ("timeout_s = nan", "is not between 0.1 and 86400"),
        ('command = "--help"', "is not the name of a command"),
        ('command = "sh -c x"', "is not the name of a command"),
        ('allocation = "-x"', "is not allowed"),
        ('api_user = "ann"', "api_key_file is missing"),
        ('client_key_file = "/k"', "client_cert_file is missing"),
        ('config = "/c"\nserver_cert_file = "/s"', "cannot both be given"),
        ('config = "c.hcl"', "is not an absolute path"),
        ('ipuof = "both"', "is not known"),
        ('ipuof_option = "-x"', "is not an option"),
        ('create_arguments = ["{indx}"]', "{indx} is not known"),
        ('create_arguments = ["a\\nb"]', "is not a word"),
        ('ipu_keys = ["a b"]', "is not a key"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text, problem):
    with pytest.raises(MooringsError) as caught:
        read(text)
    assert caught.value.code == "pools.invalid"
    assert caught.value.detail.startswith("pools.toml:")
    assert problem in caught.value.detail
