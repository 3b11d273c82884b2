from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.bindings import Binding, GcdBinding, Rendezvous
from moorings.core.model.devices import PoolName, device_id
from moorings.core.model.errors import MooringsError
from moorings.slurm.host import bind_protocol
from moorings.slurm.host.bind_protocol import BindReply, BindRequest, BindStatus, GcdReply
from tests.cases import cases
from tests.slurm.answers import GOOD, HOSTILE, head, written, wrong_file

REQUEST = BindRequest(job=1234, step=0, node="n1", restart=0, nonce="0123456789abcdef")

numbers = st.integers(0, 2**32 - 1)
requests = st.builds(
    BindRequest,
    job=st.integers(1, 2**32 - 1),
    step=numbers,
    node=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    restart=numbers,
    nonce=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
)
names = st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True).filter(bind_protocol.variable_allowed)
values = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), max_size=40)
variables = st.dictionaries(names, values, max_size=5)


@st.composite
def replies(draw: st.DrawFn) -> BindReply:
    folder = draw(st.sampled_from(["", "/run/moorings/ipuof", "/a"]))
    n_gcds = draw(st.integers(1, 5))
    contents = st.binary(max_size=50)
    return BindReply(
        BindStatus.OK,
        partition="p1",
        folder=folder,
        environment=draw(variables),
        gcds=tuple(
            GcdReply(draw(variables), {f"gcd{gcd}.conf": draw(contents)} if folder and draw(st.booleans()) else {})
            for gcd in range(n_gcds)
        ),
        master=Rendezvous("n1", draw(st.integers(1, 65535))),
    )


def invalid(call) -> str:
    with pytest.raises(MooringsError) as caught:
        call()
    assert caught.value.code == "node.invalid"
    return caught.value.detail


# -- requests ----------------------------------------------------------------------------------------------------------


@given(requests)
def test_a_request_is_read_as_it_was_written(request):
    assert bind_protocol.parse_request(bind_protocol.build_request(request)) == request


def test_the_longest_request_fits_the_line():
    longest = BindRequest(2**32 - 1, 2**32 - 1, "n" * 255, 2**32 - 1, "f" * 16)
    assert len(bind_protocol.build_request(longest)) <= bind_protocol.REQUEST_BYTES_MAX


@cases(
    ("old", "new"),
    [
        ("moorings 1 bind", "moorings 2 bind"),
        ("job=1234", "job=0"),
        ("job=1234", "job=-1"),
        ("job=1234", "job=4294967296"),
        ("job=1234", "job=01234"),
        ("job=1234", "job=\u0661"),
        ("job=1234\n", ""),
        ("job=1234", "job=1234\njob=1"),
        ("step=0", "step="),
        ("node=n1", "node=../n1"),
        ("node=n1", "node="),
        ("nonce=0123456789abcdef", "nonce=0123"),
        ("restart=0", "restart=x"),
        ("restart=0", "restart"),
    ],
)
def test_a_request_that_is_wrong_in_one_thing_is_refused(old, new):
    text = bind_protocol.build_request(REQUEST).decode()
    assert old in text
    invalid(lambda: bind_protocol.parse_request(text.replace(old, new).encode()))


@given(st.binary(max_size=600))
def test_rubbish_is_no_request(payload):
    invalid(lambda: bind_protocol.parse_request(payload))


# -- replies -----------------------------------------------------------------------------------------------------------


@given(replies())
def test_a_reply_is_read_as_it_was_written(reply):
    assert bind_protocol.parse_reply(bind_protocol.build_reply(REQUEST, reply), REQUEST) == reply


@given(st.sampled_from([BindStatus.RETRY, BindStatus.REFUSED]), st.text(max_size=700))
def test_a_message_stays_one_line(status, message):
    read = bind_protocol.parse_reply(bind_protocol.build_reply(REQUEST, BindReply(status, message)), REQUEST)
    assert read.status is status
    assert len(read.message) <= bind_protocol.MESSAGE_CHARS_MAX
    assert not set(read.message) & {"\n", "\r", "\x1b", "\0"}


def test_a_good_answer_is_taken():
    read = bind_protocol.parse_reply(written(head(REQUEST), GOOD), REQUEST)
    assert (read.partition, read.master, read.gcds[1].environment) == (
        "p1",
        Rendezvous("n1", 29500),
        {"MOORINGS_Y": "2"},
    )
    assert bind_protocol.parse_reply(wrong_file("a.conf")(REQUEST), REQUEST).gcds[0].files == {"a.conf": b"x"}


def test_what_a_newer_agent_adds_is_passed_over():
    assert bind_protocol.parse_reply(written(head(REQUEST), GOOD | {"colour": "blue"}), REQUEST).status is BindStatus.OK


@cases("name", HOSTILE)
def test_a_hostile_answer_is_refused(name):
    invalid(lambda: bind_protocol.parse_reply(HOSTILE[name](REQUEST), REQUEST))


@given(st.binary(max_size=300))
def test_rubbish_is_no_reply(payload):
    invalid(lambda: bind_protocol.parse_reply(payload, REQUEST))


@cases(
    "reply",
    [
        BindReply(BindStatus.OK),
        BindReply(BindStatus.OK, partition="p1", gcds=(GcdReply(),)),
        BindReply(BindStatus.OK, partition="p1", gcds=(GcdReply({"LD_PRELOAD": "x"}),), master=Rendezvous("n1", 1)),
        BindReply(BindStatus.OK, partition="p1", gcds=(GcdReply({"A": "x\nB=y"}),), master=Rendezvous("n1", 1)),
        BindReply(BindStatus.OK, partition="p\n1", gcds=(GcdReply(),), master=Rendezvous("n1", 1)),
        BindReply(BindStatus.OK, partition="p1", gcds=(GcdReply(files={"a": b""}),), master=Rendezvous("n1", 1)),
        BindReply(
            BindStatus.OK,
            partition="p1",
            folder="/a",
            gcds=(GcdReply(files={"a": b"x"}),) * 2,
            master=Rendezvous("n1", 1),
        ),
        BindReply(
            BindStatus.OK,
            partition="p1",
            folder="/a",
            gcds=(GcdReply(files={"a": b"x" * bind_protocol.PAYLOAD_BYTES_MAX}),),
            master=Rendezvous("n1", 1),
        ),
    ],
)
def test_what_no_node_would_take_is_not_written(reply):
    invalid(lambda: bind_protocol.build_reply(REQUEST, reply))


# -- bindings ----------------------------------------------------------------------------------------------------------

POD = PoolName("pod")
BINDING = Binding(
    "p1",
    {"IPUOF_VIPU_API_HOST": "vipu1"},
    tuple(GcdBinding(gcd, (device_id(POD, gcd),), f"p1_gcd{gcd}_ipuof.conf", f"{gcd}\n") for gcd in range(2)),
)


def test_without_a_folder_a_job_gets_the_api_form_alone():
    reply = bind_protocol.reply_for(BINDING, Rendezvous("n1", 29500), "")
    assert reply.environment == {"MOORINGS_PARTITION_ID": "p1", "IPUOF_VIPU_API_HOST": "vipu1"}
    assert [gcd.environment["IPUOF_VIPU_API_GCD_ID"] for gcd in reply.gcds] == ["0", "1"]
    assert [gcd.files for gcd in reply.gcds] == [{}, {}]


def test_with_a_folder_a_job_gets_the_files_alone():
    reply = bind_protocol.reply_for(BINDING, Rendezvous("n1", 29500), "/run/ipuof")
    assert [gcd.files for gcd in reply.gcds] == [{"p1_gcd0_ipuof.conf": b"0\n"}, {"p1_gcd1_ipuof.conf": b"1\n"}]
    every = [*reply.environment, *(name for gcd in reply.gcds for name in gcd.environment)]
    assert [name for name in every if name.startswith("IPUOF_")] == []


def test_hardware_without_files_needs_no_folder():
    plain = Binding(
        "g1", {}, (GcdBinding(0, (device_id(PoolName("gpu"), 0),), environment={"CUDA_VISIBLE_DEVICES": "0"}),)
    )
    reply = bind_protocol.reply_for(plain, Rendezvous("n1", 29500), "/run/ipuof")
    assert (reply.folder, reply.gcds[0].environment["CUDA_VISIBLE_DEVICES"]) == ("", "0")


def test_the_content_of_a_file_is_base64_on_the_line():
    payload = bind_protocol.build_reply(
        REQUEST, bind_protocol.reply_for(BINDING, Rendezvous("n1", 29500), "/run/ipuof")
    )
    assert b"file=1:p1_gcd1_ipuof.conf:" + base64.b64encode(b"1\n") in payload.splitlines()
