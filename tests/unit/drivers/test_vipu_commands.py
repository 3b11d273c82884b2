"""Every call and every answer of the vipu command: what is built is what public texts show, what is parsed is whole."""

import json
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.model.driver_results import ObservedState, PartitionSpec
from moorings.core.model.topology import Block
from moorings.drivers.vipu.commands import (
    VendorPartition,
    VipuParseError,
    build_configuration,
    build_create,
    build_delete,
    build_ipuof,
    build_partitions,
    build_reset,
    build_states,
    is_ambiguous_failure,
    parse_clusters,
    parse_ipuof,
    parse_partitions,
    parse_state,
    parse_states,
)
from moorings.drivers.vipu.settings import VipuSettings
from tests.cases import cases

# As the texts show them, word for word (facts: vipu section 3).
TABLE = """\
 Partition   | Cluster  | ILDs | GW Routing | ILD Routing | Size | GCDs | State
---------------------------------------------------------------------------------
 p64         | c64_1-16 | 1    | DEFAULT    | RINGSWNC    | 64   | 1    | ACTIVE
---------------------------------------------------------------------------------
"""
OTHER_TABLE = """\
 ID | Partition | State    | Size
----+-----------+----------+-----
 1  | p64       | ACTIVE   | 64
 2  | p16       | PS_ERROR | 16
"""
LISTING = [
    {"partition": {"id": "p2", "spec": {"ipus": [{"id": 0}, {"id": 1}], "num_gcds": 2, "num_replicas": 2}}},
    {"partition": {"id": "p1", "spec": {"ipus": [{"id": 3}], "num_gcds": 1, "num_replicas": 1}}},
]
CLUSTERS = [{"spec": {"ipu_link_domains": [{"ipus": [{"id": 0}, {"id": 1}]}, {"ipus": [{"id": 2}, {"id": 3}]}]}}]

names = st.text(string.ascii_letters + string.digits + "-._", min_size=1, max_size=36)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
words_of_theirs = st.sampled_from(
    ["partition", "id", "spec", "ipus", "num_gcds", "state", "status", "ipu_link_domains"]
)
near_json = st.recursive(
    json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words_of_theirs, inner, max_size=5),
    max_leaves=20,
)


def order(name: str = "p4", devices: str = "4-7", *, gcds: int = 1, replicas: int = 1) -> PartitionSpec:
    return PartitionSpec(name, Block.parse(devices), gcds, replicas, "mark")


def refusal(parse: Callable[[str], object], text: str) -> str:
    """Why a text is refused; empty if it is read. Nothing but reading and refusing may happen."""
    try:
        parse(text)
    except VipuParseError as error:
        return str(error) or "without a word"
    return ""


# ---- what is asked


def test_a_partition_of_one_gcd_is_made_reconfigurable_unless_that_is_turned_off():
    words = ("create", "partition", "p4", "--size", "4")
    assert build_create(order(), VipuSettings()) == (*words, "--reconfigurable")
    assert build_create(order(), VipuSettings(reconfigurable=False)) == words


def test_gcds_replicas_and_the_allocation_are_told():
    words = build_create(order(gcds=2, replicas=2), VipuSettings(allocation="alloc-1"))
    assert words == (
        *("create", "partition", "p4", "--size", "4", "--allocation", "alloc-1"),
        *("--num-gcds", "2", "--gcd-sync-replicas", "4"),
    )


def test_further_words_are_filled_in():
    settings = VipuSettings(
        reconfigurable=False,
        create_arguments=("--index", "{index}", "--at={start}-{end}", "{size}", "{name}", "{}", "{x"),
    )
    assert build_create(order("n", "8-11"), settings)[5:] == ("--index", "2", "--at=8-11", "4", "n", "{}", "{x")


def test_the_other_calls():
    assert build_delete("p") == ("delete", "partition", "p")
    assert build_reset("p") == ("reset", "partition", "p")
    assert build_partitions() == ("--showjson", "list", "partitions")
    assert build_states() == ("list", "partitions")
    settings = VipuSettings(ipuof_option="--ipu-configs")
    assert build_ipuof("p", 1, settings) == ("get", "partition", "p", "--gcd", "1", "--ipu-configs")


@given(key=st.text(string.printable.strip(), min_size=1, max_size=40))
def test_a_key_stands_in_the_configuration_as_one_string_without_templates(key):
    text = build_configuration(VipuSettings(api_host="vipu", api_user="ann"), key)
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines.keys() == {"api-host", "api-port", "api-user-id", "api-access-key"}
    written = json.loads(lines["api-access-key"])  # HCL's escapes of quotes and backslashes are JSON's
    assert written == key.replace("${", "$${").replace("%{", "%%{")


# ---- states


@pytest.mark.parametrize("word", ["ACTIVE", "PS_ACTIVE", "active", " ACTIVE "])
def test_active_is_active(word):
    assert parse_state(word) is ObservedState.ACTIVE


@given(word=st.text(max_size=20))
def test_no_other_word_is_active(word):
    plain = word.strip().upper().removeprefix("PS_")
    assert (parse_state(word) is ObservedState.ACTIVE) == (plain == "ACTIVE")


@cases("word", ["", "DEGRADED", "PS_UNKNOWN", "INACTIVE", "ACTIVE*", "PS_PS_ACTIVE", "2"])
def test_an_unknown_word_is_unknown(word):
    assert parse_state(word) is ObservedState.UNKNOWN


def test_what_may_be_only_a_lost_answer_is_known_by_its_words():
    assert is_ambiguous_failure("rpc error: code = DeadlineExceeded desc = context deadline exceeded")
    assert is_ambiguous_failure("dial tcp 10.1.3.101:8090: connect: Connection refused")
    assert not is_ambiguous_failure("size must be a power of 2")


# ---- listings


def test_the_json_of_the_texts_is_read():
    assert parse_partitions(json.dumps(LISTING)) == (
        VendorPartition("p2", "", ('{"id": 0}', '{"id": 1}'), 2),
        VendorPartition("p1", "", ('{"id": 3}',), 1),
    )
    assert parse_partitions("[]") == parse_partitions("null\n") == ()


@pytest.mark.parametrize(
    "entry",
    [
        {"partition": {"id": "p", "spec": {"ipus": [1]}, "state": "S"}},
        {"partition": {"id": "p", "spec": {"ipus": [1]}, "status": {"state": "S"}}},
        {"partition": {"id": "p", "spec": {"ipus": [1]}}, "state": "S"},
        {"partition": {"id": "p", "spec": {"ipus": [1]}}, "status": {"state": "S"}},
        {"id": "p", "spec": {"ipus": [1], "state": "S"}},
        {"id": "p", "spec": {"ipus": [1]}, "state": 3, "status": {"state": "S"}},
    ],
)
def test_the_state_is_found_where_it_may_stand(entry):
    assert parse_partitions(json.dumps([entry])) == (VendorPartition("p", "S", ("1",)),)


@cases(
    "text",
    [
        "",
        "{}",
        '"p"',
        "[1]",
        "[{}]",
        '[{"partition": 1}]',
        '[{"id": "", "spec": {"ipus": []}}]',
        '[{"id": "p"}]',
        '[{"id": "p", "spec": {}}]',
        '[{"id": "p", "spec": {"ipus": 4}}]',
        '[{"id": "p", "spec": {"ipus": []}}, {"id": "p", "spec": {"ipus": []}}]',
        "[" * 100_000,
    ],
)
def test_a_listing_that_is_not_understood_as_a_whole_is_refused(text):
    with pytest.raises(VipuParseError):
        parse_partitions(text)


@given(cut=st.integers(0, len(json.dumps(LISTING)) - 1))
def test_no_part_of_a_listing_passes_for_a_listing(cut):
    with pytest.raises(VipuParseError):
        parse_partitions(json.dumps(LISTING)[:cut])


@given(value=near_json)
def test_any_json_is_read_or_refused(value):
    text = json.dumps(value)
    for parse in (
        parse_partitions,
        lambda said: parse_partitions(said, ["id"]),
        lambda said: parse_clusters(said, ""),
        lambda said: parse_ipuof(said, 0, 1),
    ):
        assert len(refusal(parse, text)) < 600


@given(text=st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    for parse in (
        parse_partitions,
        parse_states,
        lambda said: parse_clusters(said, "c"),
        lambda s: parse_ipuof(s, 0, 1),
    ):
        assert len(refusal(parse, text)) < 600


# ---- tables


def test_tables_are_read_by_the_words_of_their_header():
    assert parse_states(TABLE) == {"p64": "ACTIVE"}
    assert parse_states(OTHER_TABLE) == {"p64": "ACTIVE", "p16": "PS_ERROR"}
    assert parse_states("\n".join(TABLE.splitlines()[:2])) == {}


@cases(
    "text",
    [
        "",
        "No partitions found",
        "ACTIVE",
        "Partition | Size\np | 1\n",
        "Partition | Partition | State\np | q | ACTIVE\n",
        "Partition | State\np\n",
        "Partition | State\np | ACTIVE | 4\n",
        "Partition | State\n | ACTIVE\n",
        "Partition | State\np | ACTIVE\np | ERROR\n",
    ],
)
def test_a_table_that_is_not_understood_is_refused(text):
    with pytest.raises(VipuParseError):
        parse_states(text)


@given(
    rows=st.dictionaries(names.filter(lambda name: name.strip("-+|=")), names.filter(lambda word: word.strip("-"))),
    columns=st.permutations(["Partition", "State", "Size", "Cluster"]),
)
def test_every_order_of_columns_gives_the_same(rows, columns):
    values = {name: {"Partition": name, "State": state, "Size": "4", "Cluster": "c"} for name, state in rows.items()}
    lines = ["|".join(columns), "-" * 40, *(" | ".join(row[column] for column in columns) for row in values.values())]
    assert parse_states("\n".join(lines)) == rows


# ---- clusters


def test_devices_are_numbered_through_the_link_domains():
    assert parse_clusters(json.dumps(CLUSTERS), "") == ('{"id": 0}', '{"id": 1}', '{"id": 2}', '{"id": 3}')


def test_a_cluster_is_chosen_by_its_id_or_by_being_the_only_one():
    two = [{"cluster": {**CLUSTERS[0], "id": "c0"}}, {"id": "c1", "spec": {"ipu_link_domains": [{"ipus": ["x"]}]}}]
    assert parse_clusters(json.dumps(two), "c1") == ('"x"',)
    assert len(parse_clusters(json.dumps(two), "c0")) == 4
    for cluster in ("", "c2"):
        with pytest.raises(VipuParseError, match="c0, c1"):
            parse_clusters(json.dumps(two), cluster)


def test_ipus_are_told_apart_by_the_keys_that_count():
    ipus = [{"agent": "a", "index": 0, "seen": 1}, {"agent": "a", "index": 1, "seen": 1}]
    text = json.dumps([{"spec": {"ipu_link_domains": [{"ipus": ipus}]}}])
    assert parse_clusters(text, "", ["index"]) == ('{"index": 0}', '{"index": 1}')
    with pytest.raises(VipuParseError, match="cannot be told apart"):
        parse_clusters(text, "", ["agent"])
    with pytest.raises(VipuParseError, match=r"'serial'.*agent, index, seen"):
        parse_clusters(text, "", ["serial"])


# ---- files for jobs


def test_an_ipuof_file_is_handed_on_as_it_was_printed():
    text = '{ "attributes": {"GCD Id": "1", "more": []},\n "devices": [{}, {}] }\n'
    assert parse_ipuof(text, 1, 2) == text
    for gcd, n_devices in ((0, 2), (1, 1)):
        with pytest.raises(VipuParseError):
            parse_ipuof(text, gcd, n_devices)
