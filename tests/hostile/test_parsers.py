"""Every parser, on what nobody meant to write: it gives a value, or a refusal that a person can act on; nothing else.

Two ways in: valid input that is damaged (``mutation``), which gets past the first line, and plain noise, which tries
the rest. The unit tests say what each refusal says; here it counts that there is no other way out.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.api.bodies import parse_body
from moorings.api.pagination import build_token, parse_token
from moorings.api.parameters import parse_wait_s, read_query
from moorings.api.parse_requests import claim_spec, job_spec, partition_spec
from moorings.api.routes import ROUTES
from moorings.app.settings import read_settings
from moorings.cli.output import parse_format
from moorings.cli.processes import parse_record
from moorings.client.requests import parse_problem
from moorings.client.sse import EVENT_BYTES_MAX, EventParser
from moorings.core.model.claims import check_name, check_new_name, check_owner, check_spec
from moorings.core.model.devices import parse_device_id
from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import parse_pools
from moorings.core.model.quantities import parse_bytes, parse_duration_s
from moorings.core.model.toml_table import TEXT_CHARS_MAX, TomlTable
from moorings.core.model.topology import Block
from moorings.drivers.simulated.faults_file import parse_faults
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.local.records import (
    AttemptEnd,
    CancelRecord,
    RecordDamagedError,
    SupervisorStatus,
    YieldRecord,
    from_json,
)
from moorings.ports.engine import RunSubmission
from moorings.terminal.configuration import load_configuration
from moorings.terminal.durations import parse_seconds
from moorings.wire import forecasts, shapes
from moorings.wire.codec import decode, encode, parse_time
from moorings.wire.errors import ERRORS
from moorings.wire.shapes import ClaimRequest, PartitionRequest, RunRequest
from moorings.workloads.jobs import check_job, parse_job
from tests.cases import cases
from tests.hostile.effort import tried
from tests.hostile.mutation import mutations, texts
from tests.waiting import within

LONG_S = 20.0  # a megabyte takes a parser a second or two; what takes its square takes hours


@contextmanager
def refused_at_most() -> Iterator[None]:
    """A refusal of ours, whole and short, is as good as a value."""
    try:
        yield
    except MooringsError as error:
        assert error.code in ERRORS
        assert 0 < len(error.detail) < 1500, "a sentence, not what was sent"
        assert len(error.hint) < 1500
        assert error.hint or len(error.detail.split()) > 2
        assert error.code != "internal.error"


DOCS = Path("docs/reference/simulated.md").read_text().split("```toml\n")[1:]
POOLS = """
[[pool]]
name = "pod64"
kind = "ipu"
driver = "simulated"
topology = { type = "power-of-two", domains = 2, domain_size = 64, max_block = 128 }
resources = { memory = "256G", cpus = 64 }
[pool.simulated]
provision_s = 0.2
seed = 7
api_host = "10.0.0.1"

[[pool]]
name = "rack"
kind = "gpu"
driver = "simulated"
[pool.topology]
type = "catalogue"
domain_size = 18
blocks = ["0-3", "4-7", "0-17", "1,3,5-7"]
"""
JOB = """
name = "digits"
command = "python3 train.py --lr '1e-3'"
tasks = 2
time = "1-10:00:00"
[accelerators]
size = 4
replicas = 2
pool = "pod64"
[resources]
cpus = 2
memory = "4GiB"
[environment]
pass = ["PATH"]
set = { OMP_NUM_THREADS = "1" }
[checkpoint]
directory = "checkpoints"
resumable = true
warn_signal = "SIGUSR1"
warn = "2:00"
grace = 30.5
[kubernetes]
image = "registry.example/digits:1"
"""
SETTINGS = 'data = "/tmp/x"\nport = 8090\nlog_level = "info"\nreserve = false\n'
CONFIG = 'server = "http://a:1"\noutput = "json"\ntimeout = "3s"\n[contexts.a]\nserver = "http://b:2"\nproject = "p"\n'
CREDENTIALS = '[contexts.default]\nserver = "http://a:1"\naccess_key = "moor_a_b"\n'
FAULTS = DOCS[1].split("```")[0]

TOML = [
    "=",
    "\n",
    "[[",
    "]]",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    '"""',
    "\\u0000",
    "\\",
    ".",
    ",",
    "#",
    "inf",
    "nan",
    "-1",
    "1e999",
]
TOML += [
    "true",
    "1979-05-27",
    "99999999999999999999",
    "0x7fffffffffffffff",
    "\t",
    "\x00",
    "é",
    "\u2028",
    "name",
    "size",
    "0-15",
]


def read_pools(text: str) -> None:
    for entry in parse_pools(text):
        SimulatedSettings.read(entry.settings)


def read_job(text: str) -> None:
    parse_job(text, source="job.toml", folder="/home/ann", submitter={"PATH": "/bin", "HOME": "/home/ann"})


@dataclass(frozen=True)
class Text:
    """A parser of texts: what it takes, and the words of its language."""

    parse: Callable[[str], object]
    corpus: tuple[str, ...]
    words: tuple[str, ...] = ()


DURATIONS = ("30s", "5m", "2h", "10:00", "1:30:00", "1-12:00:00", "1.5h", "999999999999s", "250ms", "7")
TEXTS = {
    "pools": Text(read_pools, (POOLS, DOCS[0].split("```")[0]), tuple(TOML)),
    "job file": Text(read_job, (JOB,), tuple(TOML)),
    "faults": Text(parse_faults, (FAULTS,), tuple(TOML)),
    "durations": Text(parse_duration_s, DURATIONS, (":", "-", ".", "٣", "e9", " ", "ms")),
    "timeouts": Text(
        parse_seconds, tuple(text for text in DURATIONS if not text.isdecimal()), (":", "-", ".", "٣", "e9", " ", "ms")
    ),
    "waits": Text(parse_wait_s, DURATIONS, (":", "-", ".", "٣", "e9", " ", "ms")),
    "sizes": Text(parse_bytes, ("512", "4G", "4GiB", "1.5T", "999999999999P"), ("i", "b", "K", "ſ", "٣", "e9")),
    "blocks": Text(Block.parse, ("0-15", "0,3,5-7", "1048575"), (",", "-", "0-1048575,", "٣", " ", "99999999999")),
    "devices": Text(parse_device_id, ("pod64:0", "rack:17"), (":", "-1", "٣", "/", "9" * 30)),
    "names": Text(check_name, ("a", "claim-1.b_c"), ("А", "ſ", "..", "/", "\n", "\u202e", "%00", "\x1b[31m")),
    "chosen names": Text(check_new_name, ("claim-abcdefghijkl", "run-234567abcdef-1"), ("-", "1", "\n")),
    "owners": Text(check_owner, ("user/ann", "slurm/pod/1.batch"), ("/", "..", "/./", "user/", "а", "\n", "@")),
    "tokens": Text(
        lambda text: parse_token("claims", text),
        (build_token("claims", "claim-1"), build_token("runs", "r"), "W10", "bnVsbA"),
        ("=", "_", "-", "é", "/", "+"),
    ),
    "times": Text(parse_time, ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+01:00"), ("-", "T", "0001", "9999")),
    "forms of output": Text(parse_format, ("table", "json", "custom-columns=A:.a,B:.b.c"), (",", ":", ".", "=")),
    "controller.json": Text(
        parse_record,
        ('{"pid": 1, "startTicks": 2, "url": "http://a", "version": "1"}',),
        ("1e999", "NaN", "[" * 2000, "null"),
    ),
    "queries": Text(
        lambda text: [read_query(text.encode("utf-8", "replace"), route.query) for route in ROUTES],
        ("limit=5&continue=abc&state=READY&state=PENDING", "wait=5s&for=READY", "after=1&name=claim.*&watch=1"),
        ("&", "=", "%", "%00", "%ff", "%ED%A0%80", "+", ";", "&" * 60),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
@tried(150)
@given(data=st.data())
def test_a_damaged_text_is_a_value_or_refused(name: str, data: st.DataObject) -> None:
    parser = TEXTS[name]
    text = data.draw(texts(parser.corpus, parser.words or ("x",)) | st.text(max_size=60))
    with refused_at_most():
        parser.parse(text)


@cases("name", TEXTS)
def test_the_corpus_is_what_it_is_said_to_be(name: str) -> None:
    """Else the damage would be done to what is refused anyway."""
    parser = TEXTS[name]
    if name not in ("tokens", "queries", "chosen names", "waits"):
        for text in parser.corpus:
            parser.parse(text)


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "controller.toml": (SETTINGS, lambda path: read_settings(["--config", str(path)], {"HOME": "/root"})),
    "config.toml": (
        CONFIG,
        lambda path: load_configuration({"config": str(path)}, {"HOME": str(path.parent)}).timeout_s,
    ),
    "credentials.toml": (
        CREDENTIALS,
        lambda path: load_configuration({}, {"HOME": str(path.parent), "MOORINGS_CREDENTIALS": str(path)}),
    ),
}


@pytest.mark.parametrize("name", FILES)
@tried(150)
@given(data=st.data())
def test_a_damaged_file_is_a_value_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    corpus, read = FILES[name]
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data.draw(mutations([corpus.encode()], [word.encode() for word in TOML]) | st.binary(max_size=60)))
    path.chmod(0o600)
    with refused_at_most():
        read(path)


# -- JSON ----------------------------------------------------------------------------------------------------------

JOB_BODY = {
    "job": {
        "name": "digits",
        "command": ["python3", "train.py"],
        "workdir": "/home/ann",
        "environment": {"A": "1"},
        "tasks": 2,
        "accelerators": {"size": 4, "replicas": 2},
        "resources": {"cpus": 1, "memoryBytes": 1024},
        "timeLimitS": 60.5,
        "checkpoint": {"warnSignal": "USR1", "warnS": 10},
    }
}
CLAIM_BODY = {"size": 4, "name": "a", "resources": {"memory": 5}, "queue": "never", "leaseS": 60, "owner": "user/ann"}
BODIES: dict[type, tuple[dict[str, Any], Callable[[Any], object]]] = {
    RunRequest: (JOB_BODY, lambda body: check_job(job_spec(body.job))),
    ClaimRequest: (CLAIM_BODY, lambda body: check_spec(claim_spec(body))),
    PartitionRequest: ({"size": 2, "name": "p", "gcds": 2}, lambda body: check_spec(partition_spec(body))),
}
JSON = [
    b"null",
    b"true",
    b"1e999",
    b"-1",
    b"1.5",
    b"{}",
    b"[]",
    b'""',
    b'"\\u0000"',
    b'"\\ud800"',
    b"99999999999999999999",
]
JSON += [
    b"NaN",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\x00",
    b"\xff",
    b'"size":1,',
    b"[" * 300,
    b"0" * 5000,
]


@pytest.mark.parametrize("shape", BODIES)
@tried(300)
@given(data=st.data())
def test_a_damaged_body_is_a_demand_or_refused(shape: type, data: st.DataObject) -> None:
    sample, use = BODIES[shape]
    with refused_at_most():
        use(parse_body(shape, data.draw(mutations([json.dumps(sample).encode()], JSON))))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
SHAPES = [
    shape for name, shape in {**vars(shapes), **vars(forecasts)}.items() if name.endswith(("Body", "Request", "Shape"))
]


def valid(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a wire type, from its annotations."""
    if kind in SHAPES:
        return st.builds(kind, **{name: valid(hint) for name, hint in get_type_hints(kind).items()})
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(*map(valid, get_args(kind)))
    if get_origin(kind) is tuple:
        return st.lists(valid(get_args(kind)[0]), max_size=3).map(tuple)
    return st.from_type(kind) if kind is not float else st.floats(allow_nan=False)


VALUES = {shape: valid(shape) for shape in SHAPES if shape is not shapes.EventBody}


@pytest.mark.parametrize("shape", VALUES, ids=lambda shape: shape.__name__)
@tried(20)
@given(data=st.data())
def test_what_is_encoded_is_what_is_decoded(shape: type, data: st.DataObject) -> None:
    value = data.draw(VALUES[shape])
    coded = json.loads(json.dumps(encode(value)))
    assert decode(shape, coded) == value
    assert decode(shape, {**coded, "aFieldOfTomorrow": [1]}) == value


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@tried(40)
@given(data=st.data())
def test_what_is_no_answer_of_ours_is_refused(shape: type, data: st.DataObject) -> None:
    with refused_at_most():
        decode(shape, data.draw(anything))
    if shape in VALUES:  # and a good one in which one field is something else
        coded = encode(data.draw(VALUES[shape]))
        if coded:
            coded[data.draw(st.sampled_from(sorted(coded)))] = data.draw(anything)
        with refused_at_most():
            decode(shape, coded)


@tried(200)
@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(["retry-after", "content-type"]), st.text(max_size=20) | st.just("application/json")
    ),
    mutations([b'{"title":"t","status":404,"code":"claim.unknown","detail":"d"}'], JSON),
)
def test_any_bad_answer_is_an_error_with_a_code(status: int, headers: dict[str, str], body: bytes) -> None:
    error = parse_problem(status, headers, body, server="http://a")
    assert error.code
    assert 0 <= error.retry_after_s < 1e7


RECORDS = {
    SupervisorStatus: (
        b'{"attempt":1,"phase":"RUNNING","boot":"b","supervisor":{"pid":1,"ticks":2},"started_at":5,'
        b'"tasks":[{"pid":3,"ticks":4}]}'
    ),
    AttemptEnd: b'{"attempt":1,"record":{"ending":"EXITED","exit_code":0,"task_codes":[0,null],"detail":""}}',
    CancelRecord: b'{"attempt":1,"reason":"asked"}',
    YieldRecord: b'{"attempt":1,"reason":"asked","by_s":7}',
    RunSubmission: (
        b'{"run":"r","attempt":0,"job":{"name":"n","command":["a"],"workdir":"/"},'
        b'"binding":{"partition":"p","api":{},"gcds":[]}}'
    ),
}


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@tried(300)
@given(data=st.data())
def test_a_damaged_record_is_a_record_or_damaged(kind: type, data: st.DataObject) -> None:
    assert isinstance(from_json(kind, RECORDS[kind]), kind)
    found: object
    try:
        found = from_json(kind, data.draw(mutations([RECORDS[kind]], JSON)))
    except RecordDamagedError as error:
        assert len(str(error)) < 1000
    else:
        assert isinstance(found, kind)


@cases("value", [b'"%s"' % (b"x" * 5000), b"1" + b"0" * 400, b"[" + b"[]," * 2000 + b"[]]", b"1e999"])
@cases("kind", RECORDS)
def test_a_record_with_a_huge_value_is_a_record_or_damaged(kind: type, value: bytes) -> None:
    for field in re.finditer(rb'(?<=":)("[^"]*"|[\d.]+)', RECORDS[kind]):
        text = RECORDS[kind][: field.start()] + value + RECORDS[kind][field.end() :]
        try:
            assert isinstance(from_json(kind, text), kind)
        except RecordDamagedError as error:
            assert len(str(error)) < 1000


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_record_cut_off_anywhere_is_damaged(kind: type) -> None:
    whole = RECORDS[kind]
    for length in range(len(whole)):
        with pytest.raises(RecordDamagedError):
            from_json(kind, whole[:length])


# -- streams -------------------------------------------------------------------------------------------------------

STREAM = b': beat\n\nid: 7\nevent: claim.ready\ndata: {"seq":7}\ndata: x\n\ndata\n\r\nid: 8\r\ndata: y\r\n\r\n'


@tried(300)
@given(mutations([STREAM], [b"\n", b"\r", b":", b"data:", b"id: \x00", b"\xff", b"\n\n"]), st.integers(1, 64))
def test_a_stream_in_pieces_says_the_same(stream: bytes, size: int) -> None:
    pieces = EventParser()
    found = [event for at in range(0, len(stream), size) for event in pieces.feed(stream[at : at + size])]
    assert found == EventParser().feed(stream)


@pytest.mark.parametrize("piece", [b"x" * 4096, b"data: x\n" * 512, b"event: x\n" * 512])
def test_a_stream_without_an_end_does_not_fill_the_memory(piece: bytes) -> None:
    parser = EventParser()

    def feed() -> None:
        for _ in range(2 * EVENT_BYTES_MAX // 512):
            parser.feed(piece)

    with pytest.raises(MooringsError) as refused:
        feed()
    assert refused.value.code == "controller.unreachable"


def test_a_line_that_comes_byte_by_byte_does_not_cost_its_square() -> None:
    parser = EventParser()
    with within(LONG_S):
        for _ in range(1 << 20):
            parser.feed(b"x")


# -- time ----------------------------------------------------------------------------------------------------------

# What a text of full length may look like so that a careless expression, or library, takes its square or worse.
LENGTHY = {
    "blanks in a header": "[" + " " * 200_000 + "\n",
    "blanks in a string": 'command = """\n[' + " " * 200_000 + 'x\n"""\n',
    "blanks before a key": " " * 500_000 + "a",
    "a key of a thousand parts": (".".join("a" * 250) + "=1\n") * 1000,
    "a key of all parts": ".".join("a" * 500_000) + "=1\n",
    "quoted parts": ".".join(["'a'"] * 250_000) + "=1\n",
    "quotes": '"' * 1_000_000,
    "backslashes": 'a = "' + "\\" * 1_000_000,
    "tables in tables": "".join(f"[a{number}]\n" for number in range(100_000)),
    "arrays": "a = " + "[" * 500_000,
    "inline tables": "a = " + "{a=" * 300_000,
    "a word of a megabyte": 'command = "' + "a" * 1_000_000 + '"\n',
    "a number of a megabyte": "a = " + "1" * 1_000_000,
    "comments": "#" * 1_000_000,
    "newlines": "\n" * 1_000_000,
    "equals": "=" * 1_000_000,
    "dots": "." * 1_000_000,
}


@pytest.mark.parametrize("name", LENGTHY)
def test_no_text_of_full_length_takes_long(name: str) -> None:
    text = LENGTHY[name]
    assert len(text) <= TEXT_CHARS_MAX
    with within(LONG_S):
        for parse in (read_job, read_pools):
            with refused_at_most():
                parse(text)


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in ("pools", "job file", "faults")])
@pytest.mark.parametrize(
    "text", ["9" * 300_000, "a" * 300_000, " " * 300_000, "0," * 150_000, "a/" * 150_000, ":" * 300_000]
)
def test_no_word_takes_long(name: str, text: str) -> None:
    with within(LONG_S), refused_at_most():
        TEXTS[name].parse(text)


def test_a_table_complains_shortly_of_a_long_key() -> None:
    table = TomlTable.parse(f"{'a' * 100_000} = 1", source="x", code="config.invalid")
    with refused_at_most():
        table.reject_unknown_keys()
