"""vipu.conf: the manual's keys in the syntax of Slurm's files, and complaints that say what is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.slurm.host import vipu_conf
from moorings.slurm.host.vipu_conf import (
    VipuConf,
    is_own_conf,
    load_vipu_conf,
    parse_vipu_conf,
    slurm_conf_path,
    slurm_uid,
    vipu_conf_path,
)
from tests.cases import cases
from tests.waiting import patient

SECURE = """\
ApiHost=ctl1.site.org
IsSecure=yes
ApiUser=slurm
ApiAccessKey=mk_0123456789.abcdefghijklmnop
ClientCertFile=/etc/moorings/pki/slurm.crt
ClientKeyFile=/etc/moorings/pki/slurm.key
ServerCertFile=/etc/moorings/pki/ca.crt
"""


def read(text: str) -> VipuConf:
    return parse_vipu_conf(text, "vipu.conf")


def refusal(text: str) -> MooringsError:
    with pytest.raises(MooringsError) as told:
        read(text)
    assert told.value.code == "config.invalid"
    return told.value


def test_the_manuals_defaults():
    conf = read("ApiHost=ctl1")
    assert conf == VipuConf(api_host="ctl1")
    assert (conf.api_port, conf.max_ipus, conf.timeout_s, conf.secure, conf.ipuof_dir) == (8090, 256, 50, False, None)
    assert conf.server == "http://ctl1:8090"


def test_every_key():
    conf = read(SECURE + "ApiPort=9000\nIpuofDir=/var/spool/ipuof\nMaxIpusPerJob=64\nApiTimeout=5\nPool=a\nAgentPort=1")
    assert conf == VipuConf(
        api_host="ctl1.site.org",
        api_port=9000,
        ipuof_dir=Path("/var/spool/ipuof"),
        max_ipus=64,
        timeout_s=5,
        secure=True,
        user="slurm",
        access_key="mk_0123456789.abcdefghijklmnop",
        client_cert=Path("/etc/moorings/pki/slurm.crt"),
        client_key=Path("/etc/moorings/pki/slurm.key"),
        server_cert=Path("/etc/moorings/pki/ca.crt"),
        pool="a",
        agent_port=1,
    )
    assert conf.server == "https://ctl1.site.org:9000"


@cases(
    "text",
    [
        "apihost=c apiPORT=9000",
        "ApiHost = c   ApiPort= 9000 # as slurm.conf has it",
        'ApiHost="c"\n\n#ApiPort=1\nApiPort=9000',
        "ApiHost=c \\\n  ApiPort=9000",
        "ApiHost=c\\\nApiPort=9000 \\",
        "ApiHost=c\r\nApiPort=9000\r\n",
        "# it's \"all\nApiHost=c ApiPort=9000",
    ],
)
def test_the_syntax_of_slurms_files(text):
    assert (read(text).api_host, read(text).api_port) == ("c", 9000)


def test_a_value_may_hold_what_else_ends_it():
    assert read('ApiHost=c ApiAccessKey="a#b" IpuofDir="/var/a b"').access_key == "a#b"
    assert read('ApiHost=c IpuofDir="/var/a b" # c').ipuof_dir == Path("/var/a b")
    assert read("ApiHost=c ApiAccessKey=a\\#b # c").access_key == "a#b"


@cases(
    ("text", "where", "told", "hint"),
    [
        ("ApiHost=c\nApiPort=0", "vipu.conf:2", "ApiPort '0'", "1 to 65535"),
        ("ApiHost=c\nApiPort=80800", "vipu.conf:2", "ApiPort '80800'", "1 to 65535"),
        ("ApiHost=c MaxIpusPerJob=many", "vipu.conf:1", "MaxIpusPerJob 'many'", "a whole number"),
        ("ApiHost=c ApiTimeout=-1", "vipu.conf:1", "ApiTimeout '-1'", "seconds, 1 to 3599"),
        ("ApiHost=c\n\nIpuofDir=ipuof", "vipu.conf:3", "IpuofDir 'ipuof'", "absolute path"),
        ("ApiHost=c IsSecure=maybe", "vipu.conf:1", "IsSecure 'maybe'", "yes or no"),
        ("ApiHost=http://c", "vipu.conf:1", "ApiHost 'http://c'", "a host name or an IP address"),
        ("ApiHost=c\nApiPorts=1", "vipu.conf:2", "ApiPorts is no key", "ApiHost, ApiPort, IpuofDir"),
        ("ApiHost=c\nApiHost=d", "vipu.conf:2", "twice, first in line 1", "keep one"),
        ("ApiHost=c\nwhat", "vipu.conf:2", "no KEY=VALUE", "KEY=VALUE|ApiHost=HOST"),
        ("ApiHost=c\nApiUser=", "vipu.conf:2", "ApiUser has no value", "KEY=VALUE"),
        ('ApiHost=c\nApiUser="a', "vipu.conf:2", "ApiUser has no value", "KEY=VALUE"),
        ("ApiPort=1", "vipu.conf", "ApiHost is missing", "ApiHost=HOST"),
        ("ApiHost=c\nIsSecure=yes", "vipu.conf:2", "ApiUser, ClientCertFile, ClientKeyFile, ServerCertFile", "pki"),
        ("ApiHost=c \\\n\\\nApiPort=x", "vipu.conf:1", "ApiPort 'x'", "1 to 65535"),
    ],
)
def test_a_bad_file_names_line_key_and_what_is_allowed(text, where, told, hint):
    error = refusal(text)
    assert error.detail.startswith(f"{where}: ")
    assert told in error.detail
    assert any(words in error.hint for words in hint.split("|"))


def test_a_secret_is_never_told():
    for key in ("open sesame", "open\x07sesame"):
        error = refusal(f'ApiHost=c\nApiAccessKey="{key}"')
        assert error.detail == "vipu.conf:2: ApiAccessKey is not allowed"
        assert "sesame" not in error.hint
    assert "sesame" not in repr(read("ApiHost=c ApiAccessKey=sesame"))


@given(st.text(max_size=200) | st.text(alphabet='ApiHostIsSecure="\\# \n01', max_size=80))
def test_any_text_is_read_or_refused(text):
    conf, error = None, None
    try:
        conf = read(text)
    except MooringsError as met:
        error = met
    assert conf is None or conf.api_host
    assert error is None or (error.code == "config.invalid" and error.detail.startswith("vipu.conf"))


# -- the file ----------------------------------------------------------------------------------------------------------


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_it_lies_beside_slurm_conf():
    assert vipu_conf_path({"SLURM_CONF": "/srv/slurm/etc/slurm.conf"}) == Path("/srv/slurm/etc/vipu.conf")
    assert vipu_conf_path({}) == Path("/etc/slurm/vipu.conf")


def test_slurm_conf_is_found_as_slurm_finds_it(tmp_path, monkeypatch):
    told, cached = tmp_path / "head" / "slurm.conf", tmp_path / "run" / "conf" / "slurm.conf"
    monkeypatch.setattr(vipu_conf, "CACHED_SLURM_CONF", cached)
    assert slurm_conf_path({"SLURM_CONF": "/srv/slurm.conf"}, told) == Path("/srv/slurm.conf")
    assert slurm_conf_path({}, told) == told  # nothing is here: the commands fetch it
    assert not is_own_conf(told)
    spool = tmp_path / "spool" / "conf-cache"
    for folder in (spool, cached.parent.parent, told.parent):
        folder.mkdir(parents=True)
    (spool / "slurm.conf").touch()
    cached.parent.symlink_to(spool)  # as slurmd makes it
    assert slurm_conf_path({}, told) == cached
    assert not is_own_conf(cached)
    assert not is_own_conf(spool / "slurm.conf")  # as a job's SLURM_CONF names it
    told.touch()
    assert slurm_conf_path({}, told) == told
    assert is_own_conf(told)


def test_the_key_may_stand_in_a_file_of_its_own(tmp_path):
    key = written(tmp_path / "key", "mk_1.abc\n")
    conf = written(tmp_path / "vipu.conf", f"ApiHost=c ApiAccessKeyFile={key}")
    assert load_vipu_conf(conf).access_key == "mk_1.abc"
    written(key, "two words\n")
    with pytest.raises(MooringsError, match="does not hold one access key"):
        load_vipu_conf(conf)
    assert "both stand here" in refusal("ApiHost=c ApiAccessKey=a ApiAccessKeyFile=/b").detail


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_what_others_could_read_is_refused(tmp_path, mode):
    with pytest.raises(MooringsError) as told:
        load_vipu_conf(written(tmp_path / "vipu.conf", "ApiHost=c", mode))
    assert told.value.code == "credentials.unsafe"
    assert f"{mode:04o}" in told.value.detail
    assert "chmod 600" in told.value.hint


def test_a_strangers_file_is_refused(tmp_path):
    assert os.geteuid() == 0, "as any other user nobody could make this file"
    path = written(tmp_path / "vipu.conf", "ApiHost=c")
    os.chown(path, 1234, -1)
    with pytest.raises(MooringsError) as told:
        load_vipu_conf(path)
    assert told.value.code == "credentials.unsafe"
    assert told.value.hint.endswith(f"chown root {path}")


def test_root_takes_the_file_of_slurms_user_and_no_other(tmp_path):
    """The agent runs as SlurmUser, and installation and doctor as root: both must be able to use it."""
    assert os.geteuid() == 0, "as any other user nobody could make this file"
    key = written(tmp_path / "key", "mk_1.abc\n")
    path = written(tmp_path / "vipu.conf", f"ApiHost=c ApiAccessKeyFile={key}")
    for file in (key, path):
        os.chown(file, 5, -1)
    assert load_vipu_conf(path, 5).access_key == "mk_1.abc"
    path.chmod(0o640)
    with pytest.raises(MooringsError, match="mode 0640"):
        load_vipu_conf(path, 5)
    path.chmod(0o600)
    os.chown(key, 6, -1)
    with pytest.raises(MooringsError, match=f"{key} belongs to user 6") as told:
        load_vipu_conf(path, 5)
    assert told.value.hint.endswith(f"chown games {key}"), "as root's it would stop the agent"


def test_what_the_agent_may_not_read_is_told_as_such(tmp_path):
    """For any user: in a folder that only root can enter."""
    code = (
        "import os, sys, pathlib\n"
        "from moorings.slurm.host.vipu_conf import load_vipu_conf\n"
        "os.setresuid(5, 5, 5)\n"
        "try: load_vipu_conf(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error: print(error.detail, error.hint)"
    )
    path = written(tmp_path / "vipu.conf", "ApiHost=c")
    words = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=patient(60))
    assert "Permission denied" in done.stdout, done.stderr
    assert "SlurmUser" in done.stdout


@pytest.mark.parametrize(
    ("line", "uid"),
    [("SlurmUser=games", 5), ("slurmuser = 7 # c", 7), ("", 0), ("SlurmUser=nobody-of-that-name", 0), (None, 0)],
)
def test_who_slurms_user_is_without_slurmctld(tmp_path, line, uid):
    if line is not None:
        (tmp_path / "slurm.conf").write_text(f"ClusterName=c\n{line}\n")
    assert slurm_uid(tmp_path / "slurm.conf") == uid


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"ApiHost=\xff", "is not UTF-8"),
        (b"#" * 70_000, "longer than"),
        ("folder", "directory"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, content, told):
    path = tmp_path / "vipu.conf"
    if content == "folder":
        path.mkdir(mode=0o700)
    elif content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(MooringsError, match=told):
        load_vipu_conf(path)
