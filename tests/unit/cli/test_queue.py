"""What runs and waits, with its user: the rows, their order, the screens, and ``moor get queue``."""

import json
from dataclasses import replace

import pytest

from moorings.cli import queue_entries
from moorings.cli.label_selection import parse_label_selectors
from moorings.cli.output import OutputFormat, TableStyle, render_list
from moorings.cli.queue_entries import build_queue, select_entries
from moorings.cli.resources import QUEUE_ENTRIES
from moorings.wire.codec import encode
from moorings.wire.shapes import CallerBody, PauseBody
from moorings.workloads.runs import RunState
from tests.cases import cases
from tests.unit.cli import samples
from tests.unit.cli.test_output import check_golden
from tests.unit.client.recorded import body, listing, problem


def entry_of(claim, *runs):
    (found,) = build_queue([claim], runs)
    return found


def idents(entries):
    return [entry.ident for entry in entries]


def test_what_runs_comes_by_its_start_and_what_waits_by_its_place():
    assert idents(samples.QUEUE) == [
        "claim-byhand",
        "claim-hidden",
        "run-7f3kq2m4xw2a",
        "run-running-there",
        "claim-leaving",
        "run-first",
        "run-late",
        "run-slurm",
    ]
    assert [entry.position for entry in samples.QUEUE if entry.is_waiting] == [1, 2, None]


def test_a_run_and_its_claim_are_one_row():
    claim = samples.claim("digits", **samples.GRANTED)
    entry = entry_of(claim, samples.run(started_at="2026-01-31T11:31:00Z"))
    assert (entry.run, entry.claim, entry.name) == ("run-7f3kq2m4xw2a", "claim-digits", "digits")
    assert (entry.state, entry.since) == ("RUNNING", "2026-01-31T11:31:00Z")


def test_an_idle_run_says_so_and_a_run_that_is_not_seen_does_not():
    claim = samples.claim("digits", **samples.GRANTED)
    entries = [entry_of(claim, samples.run(idle=samples.IDLE)), entry_of(claim)]
    assert [entry.idle for entry in entries] == [samples.IDLE, None]
    table = render_list(QUEUE_ENTRIES, entries, OutputFormat(), samples.NOW, TableStyle(width=80))
    assert [line[-8:].strip() for line in table.splitlines()[1:]] == ["idle 28m", "-"]


def test_a_job_of_another_scheduler_and_its_agents_claim_are_one_row():
    (entry,) = [entry for entry in samples.QUEUE if entry.run == "run-running-there"]
    assert (entry.user, entry.claim, entry.devices) == ("ann", "claim-slurm-77", "8-9")
    owner = "kubernetes/k/ns/job/uid/0"
    there = samples.run(engine="kubernetes", claim=None, reference="ns/job")
    assert entry_of(samples.claim(owner=owner), there).user == "ann"
    assert len(build_queue([samples.claim(owner=owner)], [replace(there, reference="ns/other")])) == 2


@cases(
    ("claim", "run", "shown"),
    [
        ("PENDING", "WAITING", "WAITING"),
        ("GRANTED", "WAITING", "STARTING"),
        ("READY", "WAITING", "RUNNING"),
        ("READY", "STARTING", "STARTING"),
        ("RECLAIMING", "YIELDING", "YIELDING"),
        ("READY", "STOPPING", "STOPPING"),
        ("PENDING", None, "WAITING"),
        ("GRANTED", None, "STARTING"),
        ("READY", None, "RUNNING"),
        ("RELEASING", None, "STOPPING"),
        ("LOST", None, "LOST"),
    ],
)
def test_the_state_has_the_words_of_runs_also_where_the_run_is_hidden(claim, run, shown):
    runs = [samples.run(state=run)] if run else []
    entry = entry_of(samples.claim("digits", state=claim, owner="local/run-7f3kq2m4xw2a"), *runs)
    assert entry.state == shown
    assert entry.is_waiting is (claim == "PENDING")


def test_the_states_of_runs_are_those_of_runs():
    assert {*queue_entries._RUN_STATES.values(), queue_entries._RUN_PAUSED} <= set(RunState)


def test_a_claim_without_a_run_has_its_own_state():
    assert entry_of(samples.claim(state="READY")).state == "READY"


@cases(
    ("owner", "subject", "user"),
    [
        ("user/carol", "carol", "carol"),
        ("user/carol", "an-agent", "carol"),
        ("local/run-x", "ann", "ann"),
        ("slurm/alpha/7/x/0/0", "slurm-alpha", "slurm-alpha"),
    ],
)
def test_the_user(owner, subject, user):
    assert entry_of(samples.claim(owner=owner, subject=subject)).user == user


def test_only_a_paused_run_that_resumes_by_itself_waits():
    paused = samples.run(state="PAUSED", claim=None, pause=PauseBody(by="ann", asked_at="2026-01-31T11:00:00Z"))
    assert build_queue([], [paused]) == []
    resumes = replace(paused.pause, resumes_at="2026-01-31T12:01:00Z")
    assert [entry.is_waiting for entry in build_queue([], [replace(paused, pause=resumes)])] == [True]


def test_of_another_persons_claim_on_ones_machine_the_person_and_the_state_of_a_run_are_shown():
    claim = samples.claim(name="(hidden)", owner="(hidden)", project="(hidden)", subject="bob", state="PENDING")
    entry = entry_of(claim)
    assert (entry.name, entry.user, entry.project, entry.state) == ("", "bob", "", "WAITING")


def test_a_name_that_is_hidden_is_shown_as_nothing():
    text = render_list(QUEUE_ENTRIES, samples.QUEUE, OutputFormat("table"), samples.NOW)
    assert next(line.split() for line in text.splitlines() if "bartholomew" in line)[:4] == [
        "-",
        "bartholomew",
        "-",
        "RUNNING",
    ]


@cases("columns", [80, 100, 200])
def test_the_screen(columns):
    text = render_list(QUEUE_ENTRIES, samples.QUEUE, OutputFormat("table"), samples.NOW, TableStyle(width=columns))
    check_golden(f"queue.{columns}.txt", text)
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == len(samples.QUEUE) + 1
    state = lines[0].index("STATE")
    assert all(line[state - 1] == " " and line[state] != " " for line in lines[1:])


def test_long_names_never_make_a_line_too_long():
    claim = samples.claim("n" * 64, owner=f"user/{'u' * 64}", state="PENDING", reason=samples.FULL, position=12345)
    text = render_list(
        QUEUE_ENTRIES, build_queue([claim], []), OutputFormat("table"), samples.NOW, TableStyle(width=80)
    )
    assert {len(line) <= 80 for line in text.splitlines()} == {True}


def test_of_a_user_a_project_and_a_pool():
    queue = [
        replace(samples.QUEUE[0], user="ann", project="lab", pool="pod64", run="a"),
        replace(samples.QUEUE[0], user="bob", project="lab/vision", pool=None, run="b"),
        replace(samples.QUEUE[0], user="bob", project="label", pool="other", run="c"),
    ]
    assert idents(select_entries(queue, user="bob")) == ["b", "c"]
    assert idents(select_entries(queue, project="lab")) == ["a", "b"]
    assert idents(select_entries(queue, pool=samples.pool("pod64"))) == ["a", "b"]
    assert idents(select_entries(queue, user="bob", project="lab")) == ["b"]


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def queue(server):
    """A controller with what the samples have."""
    server.on("GET", "/v1/claims", listing("Claim", [encode(claim) for claim in samples.QUEUED_CLAIMS]))
    server.on("GET", "/v1/runs", listing("Run", [encode(run) for run in samples.QUEUED_RUNS]))
    server.on("GET", "/v1/whoami", body(CallerBody(subject="bob", role="user", owner_prefix="user/bob")))
    server.on("GET", "/v1/pools/pod64", body(samples.pool("pod64")))
    server.on("GET", "/v1/pools/no", problem("pool.unknown", "there is no pool 'no'", 404))
    return server


def test_two_calls_are_enough(queue, moor):
    code, out, err = moor("get", "queue", "-o", "json")
    assert (code, err) == (0, "")
    assert [seen.path for seen in queue.seen] == ["/v1/runs", "/v1/claims"]
    document = json.loads(out)
    assert document["kind"] == "QueueEntryList"
    assert document["items"] == [encode(entry) for entry in samples.QUEUE]


def test_names_are_those_that_other_commands_take(queue, moor):
    assert moor("get", "queue", "-o", "name")[1].splitlines()[:3] == [
        "claim/byhand",
        "claim/claim-hidden",
        "run/run-7f3kq2m4xw2a",
    ]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--mine",), "run/run-first\n"),
        (("--user", "bob"), "run/run-first\n"),
        (("--user", "carol"), "claim/byhand\n"),
        (("--project", "default", "--user", "carol", "--pool", "pod64"), "claim/byhand\n"),
        (("--project", "lab"), ""),
        (("first",), "run/run-first\n"),
        (("run-first", "claim-byhand"), "claim/byhand\nrun/run-first\n"),
        (("queue/digits",), "run/run-7f3kq2m4xw2a\n"),
        (("-l", "team=nlp"), "run/run-first\n"),
        (("--user", "ann", "-l", "team"), ""),
    ],
)
def test_what_is_asked_for(queue, moor, words, shown):
    assert moor("get", "queue", *words, "-o", "name")[:2] == (0, shown)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("5",), 3, "nothing that runs or waits is called '5'"),
        (("claim/p64",), 2, "'claim/p64' is no queue"),
        (("--pool", "no"), 3, "there is no pool 'no'"),
        (("--mine", "--user", "ann"), 2, "--mine and --user exclude each other"),
        (("-o", "xml"), 2, "'xml' is no form of output"),
        (("--sort-by", "nope"), 2, "a queue has no field 'nope'"),
        (("--state", "READY"), 2, "No such option"),
        (("-l", "te am=nlp"), 2, "-l 'te am=nlp': 'te am' is not the key of a label"),
    ],
)
def test_wrong_usage(queue, moor, words, code, said):
    got, out, err = moor("get", "queue", *words)
    assert (got, out) == (code, "")
    assert said in err


@pytest.mark.parametrize(("words", "subject"), [(("--user", "ann"), "ann"), (("--mine",), "bob")])
def test_only_runs_of_that_user_are_asked_for(queue, moor, words, subject):
    assert moor("get", "runs", *words)[0] == 0
    assert f"subject={subject}" in queue.seen[-1].target


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("claims", "--user", "carol"), ["claim/byhand"]),
        (("claims", "--user", "bob", "--project", "default"), ["claim/first"]),
        (("claims", "--project", "lab"), []),
        (("runs", "-l", "team=nlp"), ["run/run-first"]),
        (("runs", "-l", "team!=nlp", "-l", "lead"), []),
        (("runs", "--project", "lab"), []),
    ],
)
def test_claims_and_runs_of_a_user_a_project_or_a_label(queue, moor, words, shown):
    code, out, _ = moor("get", *words, "-o", "name")
    assert (code, out.splitlines()) == (0, shown)


@cases(
    ("selector", "is_met"),
    [
        ("team=nlp", True),
        ("team==nlp", True),
        ("team=cv", False),
        ("team!=cv", True),
        ("lead!=ann", True),
        ("team", True),
        ("!team", False),
        ("!lead, team=nlp", True),
        ("team,lead", False),
    ],
)
def test_a_label_selector(selector, is_met):
    assert parse_label_selectors([selector])({"team": "nlp"}) is is_met


def test_an_empty_queue(server, moor):
    server.on("GET", "/v1/claims", listing("Claim", []))
    server.on("GET", "/v1/runs", listing("Run", []))
    assert moor("get", "queue") == (0, "", "Nothing runs or waits.\n")
