"""Settings: flag, then environment, then file, then default; and where a wrong one was written."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from moorings.app import settings as module
from moorings.app.machine import read_machine
from moorings.app.settings import Settings, default_data, read_settings
from moorings.core.model.errors import MooringsError
from moorings.workloads.idleness import IdleLimits


@pytest.fixture(autouse=True)
def _no_file_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "DEFAULT_CONFIG", tmp_path / "etc" / "controller.toml")


@pytest.fixture
def config(tmp_path):
    """Writes a settings file and gives the flags that name it."""

    def write(text: str) -> list[str]:
        file = tmp_path / "controller.toml"
        file.write_text(text)
        return ["--config", str(file)]

    return write


def refused(arguments: list[str], environment: dict[str, str] | None = None) -> MooringsError:
    with pytest.raises(MooringsError) as caught:
        read_settings(arguments, environment or {})
    assert caught.value.code == "config.invalid"
    return caught.value


# -- precedence ----------------------------------------------------------------------------------------------------


def test_without_anything_there_are_defaults():
    assert read_settings([], {"HOME": "/home/ann"}) == Settings(data=Path("/home/ann/.local/state/moorings"))


@pytest.mark.parametrize(
    ("flag", "variable", "line", "chosen"),
    [
        ("error", "debug", 'log_level = "warning"', "error"),
        (None, "debug", 'log_level = "warning"', "debug"),
        (None, None, 'log_level = "warning"', "warning"),
        (None, None, "", "info"),
        ("error", None, "", "error"),
        (None, "debug", "", "debug"),
        (None, "", 'log_level = "warning"', "warning"),
    ],
)
def test_a_flag_is_stronger_than_the_environment_than_the_file_than_the_default(config, flag, variable, line, chosen):
    arguments = config(line) + (["--log-level", flag] if flag is not None else [])
    environment = {"MOORINGS_LOG_LEVEL": variable} if variable is not None else {}
    assert read_settings(arguments, environment).log_level == chosen


def test_jobs_get_the_machine_unless_less_is_said(config):
    usual = read_machine(read_settings([], {"HOME": "/home/ann"}))
    assert usual["cpus"] == len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text().split()
    assert usual["memory"] == int(meminfo[1]) * 1024
    less = read_settings(config('cpus = 3\nmemory = "2G"'), {"HOME": "/home/ann"})
    assert read_machine(less) == {"cpus": 3, "memory": 2 << 30}
    none = read_settings(config('cpus = 0\nmemory = "0"'), {"HOME": "/home/ann"})
    assert read_machine(none) == {"cpus": 0, "memory": 0}


def test_a_wrong_size_of_the_machine_is_told(config):
    for line in ('memory = "much"', "cpus = -1"):
        with pytest.raises(MooringsError) as caught:
            read_settings(config(line), {"HOME": "/home/ann"})
        assert caught.value.code == "config.invalid"
        assert line.split()[0] in caught.value.detail


def test_the_data_folder_has_the_same_precedence(config):
    arguments, environment = config('data = "/file"'), {"MOORINGS_DATA": "/variable", "HOME": "/home/ann"}
    assert read_settings([*arguments, "--data", "/flag"], environment).data == Path("/flag")
    assert read_settings(arguments, environment).data == Path("/variable")
    assert read_settings(arguments, {"HOME": "/home/ann"}).data == Path("/file")


def test_everything_may_stand_in_the_file(config):
    arguments = config("""
        data = "/srv/moorings"
        host = "::1"
        port = 0
        pools = "/etc/pools.toml"
        credentials = "/root/credentials.toml"
        context = "site"
        reserve = false
        log_level = "debug"
        log_format = "json"
        log_file = "/var/log/moorings.log"
        log_file_bytes_max = 0
        keep_runs_days = 7
        key_lifetime_days = 0
    """)
    assert read_settings(arguments, {}) == Settings(
        data=Path("/srv/moorings"),
        host="::1",
        port=0,
        pools=Path("/etc/pools.toml"),
        credentials=Path("/root/credentials.toml"),
        context="site",
        reserve=False,
        log_level="debug",
        log_format="json",
        log_file=Path("/var/log/moorings.log"),
        log_file_bytes_max=0,
        keep_runs_days=7,
        key_lifetime_days=0,
    )


def test_when_a_run_is_idle_is_set_in_the_file(config):
    assert read_settings(config(""), {}).idle_limits == IdleLimits(1800.0, 14_400.0)
    set_so = read_settings(config('idle_after = "90s"\nidle_admin_after = "0"'), {})
    assert set_so.idle_limits == IdleLimits(90.0, 0.0)


def test_a_slurm_cluster_stands_in_the_file_and_nowhere_else(config):
    text = '[slurm]\nfolder = "/shared/runs"\n[slurm.projects.vision]\nqos = "high"'
    settings = read_settings(config(text), {}).slurm
    assert settings is not None
    assert (settings.folder, settings.target_for("vision").qos) == (Path("/shared/runs"), "high")
    assert read_settings(config("port = 1"), {}).slurm is None
    by_people = read_settings(config("[slurm]"), {}).slurm
    assert by_people is not None
    assert by_people.folder is None


@pytest.mark.parametrize("text", ['[slurm]\nfolder = "runs"', "[slurm]\nfolder = 1", 'slurm = "here"'])
def test_a_wrong_slurm_cluster_is_told_with_its_line(config, text):
    with pytest.raises(MooringsError) as caught:
        read_settings(config(text), {})
    assert caught.value.code == "config.invalid"
    assert "controller.toml:" in caught.value.detail


def test_a_kubernetes_stands_in_the_file_and_nowhere_else(config):
    text = '[kubernetes]\nnamespace = "runs"\n[kubernetes.projects.vision]\nnamespace = "lab-vision"'
    settings = read_settings(config(text), {}).kubernetes
    assert settings is not None
    assert settings.namespaces == ("runs", "lab-vision")
    assert read_settings(config("port = 1"), {}).kubernetes is None


@pytest.mark.parametrize("text", ["[kubernetes]", 'kubernetes = "here"', "[kubernetes]\nnamespace = 1"])
def test_a_wrong_kubernetes_is_told_with_its_line(config, text):
    with pytest.raises(MooringsError) as caught:
        read_settings(config(text), {})
    assert caught.value.code == "config.invalid"
    assert "controller.toml:" in caught.value.detail


def test_everything_but_the_reservation_is_a_flag_too():
    flags = {
        "--data": "/srv",
        "--host": "0.0.0.0",
        "--port": "65535",
        "--pools": "/p",
        "--credentials": "/c",
        "--context": "site",
        "--log-level": "error",
        "--log-format": "json",
    }
    chosen = read_settings([word for pair in flags.items() for word in pair], {})
    assert [str(chosen.data), chosen.host, str(chosen.port), str(chosen.pools), str(chosen.credentials)] == [
        *list(flags.values())[:5]
    ]
    assert [chosen.context, chosen.log_level, chosen.log_format] == ["site", "error", "json"]


def test_the_machines_file_is_read_if_it_is_there():
    module.DEFAULT_CONFIG.parent.mkdir()
    module.DEFAULT_CONFIG.write_text("port = 4711\n")
    assert read_settings([], {}).port == 4711


def test_a_named_file_takes_the_place_of_the_machines(config):
    module.DEFAULT_CONFIG.parent.mkdir()
    module.DEFAULT_CONFIG.write_text("port = 4711\n")
    assert read_settings(config('host = "::1"'), {}).port == 8090


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/moorings", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/var/lib/moorings"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/moorings"),
        ({"HOME": "/h"}, "/h/.local/state/moorings"),
        ({}, "/root/.local/state/moorings"),
    ],
)
def test_the_usual_data_folder(environment, folder):
    assert default_data(environment) == Path(folder)


def test_paths_become_absolute_and_home_is_known(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    chosen = read_settings(["--data", "state", "--pools", "~/pools.toml"], {})
    assert chosen.data == tmp_path / "state"
    assert chosen.pools == Path.home() / "pools.toml"


# -- what is wrong, and where --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('port = "8090"', "port must be a whole number, not a string"),
        ("port = true", "port must be a whole number, not true or false"),
        ("port = 80.5", "port must be a whole number, not a number"),
        ("port = 65536", "port '65536' is not 0 to 65535"),
        ("port = -1", "port '-1' is not 0 to 65535"),
        ("port = " + "9" * 400, "port '99999999999999999999' is not 0 to 65535"),
        ("host = 1", "host must be a string, not a number"),
        ('reserve = "no"', "reserve must be true or false, not a string"),
        ("reserve = 0", "reserve must be true or false, not a number"),
        ('log_level = "loud"', "log level 'loud' is not known"),
        ('log_format = "xml"', "log format 'xml' is not known"),
        ("key_lifetime_days = 3661", "key_lifetime_days '3661' is too long"),
        ("keep_runs_days = -1", "keep_runs_days '-1' is no whole number"),
        ('idle_after = "soon"', "idle_after 'soon' is no duration"),
        ('idle_admin_after = ""', "idle_admin_after '' is no duration"),
        ("idle_after = 30", "idle_after must be a string, not a number"),
        ('log_file_bytes_max = "many"', "log_file_bytes_max must be a whole number, not a string"),
        ('data = ""', "data '' is no path"),
        ('pools = "a\\u0000b"', "pools 'a\\x00b' is no path"),
        ('credentials = "~nobody-is-called-that/x"', "credentials '~nobody-is-called-that/x' is no path"),
        ("data = []", "data must be a string, not a list"),
    ],
)
def test_a_wrong_value_in_the_file_is_told_with_its_line(config, line, told):
    arguments = config(f"# mine\n\n{line}\n")
    assert str(refused(arguments)) == f"{arguments[1]}:3: {told}"


def test_an_unknown_key_is_told_with_every_key_there_is(config):
    arguments = config('host = "::1"\nprot = 1\n')
    error = refused(arguments)
    assert str(error) == f"{arguments[1]}:2: 'prot' is not known here"
    names = sorted(item.name for item in fields(Settings))
    assert error.hint == f"known: {', '.join(names)}"


@pytest.mark.parametrize("text", ["port =", "port = 1\nport = 2", "\0", "[" * 10_000, "a = " + "9" * 5000])
def test_a_file_that_is_not_toml_is_told_by_name(config, text):
    arguments = config(text)
    assert str(refused(arguments)).startswith(arguments[1])


def test_a_file_that_is_not_text_is_told_by_name(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert str(refused(["--config", str(tmp_path / "binary")])).startswith(str(tmp_path / "binary"))


def test_a_named_file_must_be_there(tmp_path):
    assert "No such file" in str(refused(["--config", str(tmp_path / "none.toml")]))
    assert "directory" in str(refused(["--config", str(tmp_path)]))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "http"], "--port: port 'http' is not 0 to 65535"),
        (["--port", "65536"], "--port: port '65536' is not 0 to 65535"),
        (["--port=-1"], "--port: port '-1' is not 0 to 65535"),
        (["--port", "٣"], "--port: port '٣' is not 0 to 65535"),
        (["--port", "9" * 5000], "--port: port '99999999999999999999' is not 0 to 65535"),
        (["--log-level", "INFO"], "--log-level: log level 'INFO' is not known"),
        (["--log-format", ""], "--log-format: log format '' is not known"),
        (["--data", ""], "--data: data '' is no path"),
        (["--data", "~nobody-is-called-that"], "--data: data '~nobody-is-called-that' is no path"),
    ],
)
def test_a_wrong_flag_is_told_by_its_name(arguments, told):
    error = refused(arguments)
    assert str(error) == told
    assert error.hint


def test_a_wrong_variable_is_told_by_its_name():
    error = refused([], {"MOORINGS_LOG_LEVEL": "loud"})
    assert str(error) == "MOORINGS_LOG_LEVEL: log level 'loud' is not known"
    assert error.hint == "use debug, info, warning, error"


def test_a_wrong_value_is_told_even_where_a_flag_would_hide_it(config):
    assert ":1: port" in str(refused([*config("port = 99999"), "--port", "8090"]))


@pytest.mark.parametrize("arguments", [["--prot", "1"], ["--port"], ["extra"]])
def test_a_flag_nobody_knows_ends_with_a_usage_error(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        read_settings(arguments, {})
    assert caught.value.code == 2
    assert "usage: moorings-controller" in capsys.readouterr().err


def test_settings_are_a_value():
    chosen: Any = read_settings([], {})
    with pytest.raises(AttributeError):
        chosen.port = 1


@pytest.mark.parametrize("address", ["http://one:8090", "https://one.example.org", "https://[2001:db8::1]:8443"])
def test_a_controller_is_reached_with_or_without_tls(address):
    assert read_settings(["--advertise", address], {"HOME": "/home/ann"}).advertise == address


@pytest.mark.parametrize("address", ["ftp://one", "one:8090", "https://", "https://one/path?x", "javascript:x"])
def test_an_address_of_another_kind_is_refused(address):
    assert "https://host:port" in refused(["--advertise", address]).hint


def test_a_switch_is_true_or_false_in_the_environment(config):
    for value, chosen in (("true", True), ("false", False), ("", True)):
        environment = {"HOME": "/home/ann", "MOORINGS_JOBS_AS_ROOT": value}
        assert read_settings(config("jobs_as_root = true"), environment).jobs_as_root is chosen
    error = refused([], {"MOORINGS_JOBS_AS_ROOT": "1"})
    assert str(error) == "MOORINGS_JOBS_AS_ROOT: jobs_as_root '1' is neither true nor false"
