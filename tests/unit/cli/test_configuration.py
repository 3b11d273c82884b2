"""Where a setting comes from, and what is refused before anything is sent."""

from pathlib import Path

import pytest

from moorings.core.model.errors import MooringsError
from moorings.terminal.configuration import (
    context_servers,
    credentials_file,
    data_folder,
    load_configuration,
    permission_hint,
    read_private,
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "moorings").mkdir()
    return tmp_path / "moorings"


@pytest.fixture
def load(tmp_path, folder):
    def loaded(flags=None, **environment):
        surroundings = {"XDG_CONFIG_HOME": str(tmp_path), **environment}
        return load_configuration(flags or {}, surroundings, system_file=tmp_path / "client.toml")

    return loaded


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


CREDENTIALS = '[contexts.default]\nserver = "http://one:8090"\naccess_key = "moor_one"\n'


def test_nothing_given_is_the_default(load):
    values = load()
    assert values.text("server") == "http://127.0.0.1:8090"
    assert values.values["server"].origin == "default"
    assert values.text("access_key") == ""
    assert values.timeout_s == 30


def test_each_source_wins_over_the_next(load, tmp_path, folder):
    write(folder / "credentials.toml", CREDENTIALS)
    assert load().text("server") == "http://one:8090"
    write(tmp_path / "client.toml", 'server = "http://system"\nproject = "site"\n')
    assert load().text("server") == "http://system"
    write(folder / "config.toml", '[contexts.default]\nserver = "http://own"\n')
    assert load().text("server") == "http://own"
    assert load().text("project") == "site"
    chosen = write(tmp_path / "chosen.toml", 'server = "http://chosen"\n')
    assert load(MOORINGS_CONFIG=str(chosen)).text("server") == "http://chosen"
    assert load(MOORINGS_CONFIG=str(chosen), MOORINGS_SERVER="http://env").text("server") == "http://env"
    both = load({"server": "http://flag"}, MOORINGS_SERVER="http://env")
    assert both.text("server") == "http://flag"
    assert both.values["server"].origin == "flag --server"


def test_origins_name_file_and_context(load, folder):
    path = write(folder / "credentials.toml", CREDENTIALS)
    assert load().values["access_key"].origin == f"{path} [contexts.default]"
    assert load(MOORINGS_TIMEOUT="5s").values["timeout"].origin == "environment MOORINGS_TIMEOUT"


def test_a_context_chooses_server_and_key(load, folder):
    write(
        folder / "credentials.toml", CREDENTIALS + '[contexts.pod1]\nserver = "http://two"\naccess_key = "moor_two"\n'
    )
    values = load({"context": "pod1"})
    assert (values.text("server"), values.text("access_key")) == ("http://two", "moor_two")
    write(folder / "config.toml", 'context = "pod1"\n')
    assert load().text("access_key") == "moor_two"


def test_an_unknown_context_is_refused_and_the_known_are_named(load, folder):
    write(folder / "credentials.toml", CREDENTIALS)
    with pytest.raises(MooringsError) as caught:
        load(MOORINGS_CONTEXT="pod9")
    assert caught.value.code == "config.invalid"
    assert "default" in caught.value.hint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o610])
def test_a_credentials_file_that_others_can_use_is_refused(load, folder, mode):
    path = write(folder / "credentials.toml", CREDENTIALS, mode)
    with pytest.raises(MooringsError) as caught:
        load()
    assert caught.value.code == "credentials.unsafe"
    assert f"chmod 600 {path}" in caught.value.hint


def test_a_key_file_has_the_same_rules(load, tmp_path):
    path = write(tmp_path / "key", "moor_file\n")
    assert load(MOORINGS_ACCESS_KEY_FILE=str(path)).text("access_key") == "moor_file"
    assert load(MOORINGS_ACCESS_KEY_FILE=str(path), MOORINGS_ACCESS_KEY="moor_env").text("access_key") == "moor_env"
    path.chmod(0o644)
    with pytest.raises(MooringsError) as caught:
        load(MOORINGS_ACCESS_KEY_FILE=str(path))
    assert caught.value.code == "credentials.unsafe"


def test_no_mode_is_proposed_for_what_is_no_file():
    assert permission_hint(Path("/k"), 0o100644) == "chmod 600 /k"
    assert "chmod" not in permission_hint(Path("/dev/stdin"), 0o020620)


def test_a_bare_timeout_is_refused_as_a_flag(load):
    with pytest.raises(MooringsError, match="'5' has no unit") as caught:
        _ = load({"timeout": "5"}).timeout_s
    assert caught.value.hint == "write 5s or 5m"


def test_a_bare_timeout_is_seconds_elsewhere_as_older_releases_have_it(load):
    assert load(MOORINGS_TIMEOUT="5").timeout_s == 5
    assert load({"timeout": "2m"}).timeout_s == 120


def test_the_servers_of_contexts_with_keys(folder):
    environment = {"MOORINGS_CREDENTIALS": str(folder / "credentials.toml")}
    assert context_servers(environment) == {}
    write(folder / "credentials.toml", CREDENTIALS + '[contexts.bare]\nserver = "http://two"\n')
    assert context_servers(environment) == {"default": "http://one:8090"}


def test_a_key_is_not_sent_to_another_server_than_its_own(load, folder):
    write(folder / "credentials.toml", CREDENTIALS)
    assert load({"server": "http://one:8090/"}).text("access_key") == "moor_one"
    elsewhere = load({"server": "http://elsewhere"})
    assert elsewhere.text("access_key") == ""
    assert "belongs to http://one:8090" in elsewhere.values["access_key"].origin
    assert load(MOORINGS_SERVER="http://elsewhere").text("access_key") == ""
    assert load(MOORINGS_SERVER="http://elsewhere", MOORINGS_ACCESS_KEY="moor_env").text("access_key") == "moor_env"


def test_a_mistyped_setting_is_refused_with_its_line(load, folder):
    path = write(folder / "config.toml", '# mine\nserver = "http://x"\nsrever = "http://y"\n')
    with pytest.raises(MooringsError) as caught:
        load()
    assert f"{path}:3" in caught.value.detail
    assert "srever" in caught.value.detail


def test_a_configuration_file_that_is_not_there_is_refused(load):
    with pytest.raises(MooringsError) as caught:
        load(MOORINGS_CONFIG="/nowhere.toml")
    assert "/nowhere.toml" in caught.value.detail


def test_a_secret_that_cannot_be_read_is_no_traceback(tmp_path):
    with pytest.raises(MooringsError) as caught:
        read_private(tmp_path / "missing")
    assert caught.value.code == "config.invalid"


def test_folders_follow_the_xdg_variables():
    assert str(data_folder({"HOME": "/home/ann"})) == "/home/ann/.local/state/moorings"
    assert str(data_folder({"HOME": "/h", "XDG_STATE_HOME": "/s"})) == "/s/moorings"
    assert str(data_folder({"HOME": "/h", "MOORINGS_DATA": "/d"})) == "/d"
    assert str(data_folder({"HOME": "/h", "XDG_STATE_HOME": "relative"})) == "/h/.local/state/moorings"
    assert str(credentials_file({"HOME": "/h"})) == "/h/.config/moorings/credentials.toml"
    assert str(credentials_file({"MOORINGS_CREDENTIALS": "/c"})) == "/c"
