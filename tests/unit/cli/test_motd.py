"""``moor motd``: its lines, and that a login neither fails nor waits for it."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from moorings.cli.motd_lines import LINE_CHARS, LoginFacts, build_lines
from moorings.cli.people import DevicesLeft
from moorings.terminal.console import Console
from moorings.terminal.context import CommandContext
from moorings.wire.codec import encode
from moorings.wire.shapes import CallerBody, ProjectBody
from tests.cases import cases
from tests.unit.cli import samples
from tests.unit.cli.test_output import check_golden
from tests.unit.cli.test_top import record
from tests.unit.client.recorded import Reply, body, listing, problem

ANN = LoginFacts(samples.POOLS, samples.QUEUE, "ann", DevicesLeft("lab", 4, 8))


def test_the_lines_of_a_person():
    lines = build_lines(ANN, samples.NOW)
    check_golden("motd.txt", "\n".join(lines))
    assert len(lines) == 6


def test_the_machines_own_message_has_no_runs():
    assert build_lines(LoginFacts(samples.POOLS, samples.QUEUE), samples.NOW) == build_lines(ANN, samples.NOW)[:2]


def test_there_are_six_lines_at_most_and_none_is_long():
    many = [
        replace(samples.QUEUE[6], name="n" * 64, run=f"run-{number}", position=number, user="ann")
        for number in range(50)
    ]
    pools = [samples.pool(f"pool-{number}") for number in range(40)]
    facts = LoginFacts(pools, many, "ann", DevicesLeft("p" * 64, 0, 8))
    lines = build_lines(facts, samples.NOW)
    assert len(lines) == 6
    assert max(map(len, lines)) <= LINE_CHARS
    assert lines[0] == "Free: pool-0 28 of 256 ipu, pool-1 28 of 256 ipu, 38 more pools"
    assert lines[1:3] == ["Waiting: 1 person with 50 jobs", "Yours: 0 running, 50 waiting"]
    assert lines[4] == "  and 49 more: moor get queue --mine"
    assert "".join(build_lines(facts, samples.NOW, unicode=False)).isascii()


@cases("shows_idle", [False, True])
def test_only_root_itself_is_shown_who_holds_idle_devices(shows_idle):
    idle = [
        replace(samples.QUEUE[2], user=f"user-{number}", idle=replace(samples.IDLE, shown_to_admins=number > 0))
        for number in range(6)
    ]
    lines = build_lines(LoginFacts(samples.POOLS, idle, shows_idle=shows_idle), samples.NOW)
    assert lines[2:] == shows_idle * [
        "Idle: user-1 holds 16 ipu and has used no CPU for 28m: digits",
        "Idle: user-2 holds 16 ipu and has used no CPU for 28m: digits",
        "Idle: user-3 holds 16 ipu and has used no CPU for 28m: digits",
        "  and 2 more: moor top",
    ]


def test_a_person_is_shown_the_own_idle_runs_first_and_no_others():
    short = replace(samples.QUEUE[2], idle=replace(samples.IDLE, shown_to_admins=False))
    theirs = replace(short, user="bob")
    lines = build_lines(LoginFacts(samples.POOLS, [theirs, short, samples.QUEUE[6]], "ann"), samples.NOW)
    assert lines[2:4] == [
        "Yours: 1 running, 1 waiting",
        "  digits holds 16 ipu and has used no CPU for 28m",
    ]
    assert len(lines) == 5
    assert lines[4].endswith("waits at position 2: devices in use")


def test_an_idle_machine():
    assert build_lines(LoginFacts(samples.POOLS, (), "ann"), samples.NOW) == [
        "Free: pod256 28 of 256 ipu, wse unreachable",
        "Waiting: none",
        "Yours: 0 running, 0 waiting",
    ]
    assert build_lines(LoginFacts((), ()), samples.NOW)[0] == "Free: there are no pools"


def test_a_name_cannot_move_the_cursor():
    waiting = replace(samples.QUEUE[6], name="\x1b[2Jx\ny", user="ann")
    lines = build_lines(LoginFacts(samples.POOLS, [waiting], "ann"), samples.NOW)
    assert lines[3].startswith("  \\x1b[2Jx\\ny waits at position 2: devices in use")


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is not root, and as patient as tests are: what is measured is the age of their process."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(CommandContext, "now", lambda _: samples.NOW)
    monkeypatch.setattr("moorings.cli.commands.motd.LIMIT_S", 1000.0)


@pytest.fixture
def machine(server):
    record(server)
    server.on("GET", "/v1/whoami", body(CallerBody(subject="ann", role="user", owner_prefix="user/ann")))
    return server


@pytest.mark.usefixtures("person")
def test_a_person_sees_their_own_runs(machine, moor):
    code, out, err = moor("motd")
    assert (code, err) == (0, "")
    assert out.splitlines() == build_lines(replace(ANN, left=None), samples.NOW)
    assert [seen.path for seen in machine.seen] == [
        "/v1/pools",
        "/v1/runs",
        "/v1/claims",
        "/v1/whoami",
        "/v1/projects",
    ]


@pytest.mark.usefixtures("person")
def test_a_person_sees_what_their_projects_limit_leaves(machine, moor, monkeypatch):
    monkeypatch.setenv("MOORINGS_PROJECT", "lab/vision")
    project = ProjectBody(name="lab", shares=(), weight=1.0, version=1, devices_max=50)
    machine.on("GET", "/v1/projects", listing("Project", [encode(project)]))
    machine.on("GET", "/v1/quotas", listing("Quota", [encode(quota) for quota in samples.QUOTAS]))
    assert moor("motd")[1].splitlines()[-1] == "Quota: 10 of 50 devices left in project lab"


def test_root_sees_the_machine(machine, moor, monkeypatch):
    monkeypatch.setattr("moorings.cli.commands.motd.LIMIT_S", 1000.0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    code, out, err = moor("motd")
    assert (code, out.splitlines(), err) == (0, build_lines(ANN, samples.NOW)[:2], "")
    assert [seen.path for seen in machine.seen] == ["/v1/pools", "/v1/runs", "/v1/claims"]
    monkeypatch.setattr(Console, "out_is_tty", True)
    monkeypatch.setattr(CommandContext, "now", lambda _: samples.NOW)
    idle = "Idle: ann holds 16 ipu and has used no CPU for 28m: digits"
    assert moor("motd")[1].splitlines() == [*out.splitlines(), idle], "a terminal of root's is for root alone"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A controller that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setenv("MOORINGS_SERVER", f"http://127.0.0.1:{listening.getsockname()[1]}")
        yield


@pytest.mark.usefixtures("silent")
def test_a_controller_that_does_not_answer_is_left_after_the_limit(moor, monkeypatch):
    monkeypatch.setattr("moorings.cli.commands.motd.LIMIT_S", 0.0)
    assert moor("motd") == (0, "", "")
    assert moor("motd", "-v") == (0, "", "motd: no answer within 0 s\n")


@pytest.mark.usefixtures("silent")
def test_the_limit_is_for_all_of_it(moor, monkeypatch):
    monkeypatch.setattr("moorings.cli.commands.motd._process_age_s", lambda: 0.9)
    assert moor("motd") == (0, "", "")


@pytest.mark.usefixtures("person")
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (problem("auth.missing", "no access key", 401), "motd: no access key"),
        (Reply(b"\x00not json"), "does not answer as a controller does"),
        (Reply([1, 2]), "motd: the answer is not a list"),
        (Reply({"items": [{"name": 7}]}), "motd: "),
    ],
)
def test_whatever_a_controller_answers_a_login_goes_on(machine, moor, reply, said):
    machine.on("GET", "/v1/claims", reply)
    assert moor("motd") == (0, "", "")
    code, out, err = moor("motd", "-v")
    assert (code, out) == (0, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("person")
def test_without_a_controller_or_with_a_wrong_configuration_there_is_nothing(moor, monkeypatch, tmp_path):
    monkeypatch.setenv("MOORINGS_SERVER", "http://127.0.0.1:1")
    assert moor("motd") == (0, "", "")
    assert moor("motd", "-v")[2] == "motd: nothing listens at http://127.0.0.1:1\n"
    (tmp_path / "config.toml").write_text("nonsense")
    monkeypatch.setenv("MOORINGS_CONFIG", str(tmp_path / "config.toml"))
    assert moor("motd") == (0, "", "")
    assert "config.toml" in moor("motd", "-v")[2]
