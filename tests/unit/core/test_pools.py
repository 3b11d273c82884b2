"""The pools file: what an admin may write, and what an admin is told who wrote something else."""

from __future__ import annotations

import pytest

from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import POOLS_MAX, PoolEntry, parse_pools
from moorings.core.model.topology import AnySubset, Block, Catalogue, PowerOfTwo
from tests.cases import cases

NAMED = '[[pool]]\nname = "pod"\nkind = "ipu"\ndriver = "simulated"\n'  # lines 1 to 4
POD = 'topology = { type = "power-of-two", domain_size = 8 }\n'  # line 5


def one(text: str) -> PoolEntry:
    (entry,) = parse_pools(text)
    return entry


def complaint(text: str) -> tuple[str, str]:
    with pytest.raises(MooringsError) as caught:
        parse_pools(text, source="/etc/pools.toml")
    assert caught.value.code == "pools.invalid"
    return str(caught.value), caught.value.hint


def topology(**values: object) -> str:
    told = ", ".join(f"{key} = {value if isinstance(value, int) else repr(value)}" for key, value in values.items())
    return f"topology = {{ {told} }}\n"


# -- what may be written -------------------------------------------------------------------------------------------


def test_a_pool_of_power_of_two_blocks():
    pool = one(NAMED + topology(type="power-of-two", domains=4, domain_size=64, max_block=128)).pool
    assert (pool.name, pool.kind, pool.driver, pool.resources) == ("pod", "ipu", "simulated", ())
    assert pool.topology == PowerOfTwo(4, 64, 128)


def test_the_largest_block_is_a_domain_unless_it_is_given():
    assert one(NAMED + topology(type="power-of-two", domains=4, domain_size=64)).pool.topology == PowerOfTwo(4, 64, 64)


def test_a_pool_of_any_subsets():
    assert one(NAMED + topology(type="any-subset", domains=2, domain_size=8)).pool.topology == AnySubset(16, 16)
    assert one(NAMED + topology(type="any-subset", domain_size=8, max_block=4)).pool.topology == AnySubset(8, 4)


def test_a_pool_of_listed_blocks():
    listed = one(NAMED + topology(type="catalogue", domain_size=6, blocks=["0-2", "3-5", "0,5"])).pool.topology
    assert listed == Catalogue(6, (Block.parse("0-2"), Block.parse("3-5"), Block.parse("0,5")))


def test_pools_come_in_the_order_of_the_file():
    text = NAMED + POD + NAMED.replace("pod", "another") + POD
    assert [entry.pool.name for entry in parse_pools(text)] == ["pod", "another"]


def test_secondary_resources_are_sizes_or_whole_numbers():
    entry = one(NAMED + POD + 'resources = { memory = "2G", fabric = 12 }\n')
    assert entry.pool.resources == (("fabric", 12), ("memory", 2 << 30))


def test_the_drivers_own_table_is_left_to_the_driver():
    entry = one(NAMED + POD + "[pool.simulated]\nanything = 1\n")
    assert entry.settings.keys() == ("anything",)
    assert entry.settings.location("anything") == "pools.toml:7"


def test_a_name_may_have_32_characters():
    assert one(NAMED.replace("pod", "p" * 32) + POD).pool.name == "p" * 32


def test_as_many_pools_as_are_allowed():
    text = "".join(NAMED.replace("pod", f"pod{number}") + POD for number in range(POOLS_MAX))
    assert len(parse_pools(text)) == POOLS_MAX
    assert "at most" in complaint(text + NAMED + POD)[0]


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# nothing here\n", "pool = []"])
def test_a_file_without_a_pool_is_refused_with_a_beginning(text):
    told, hint = complaint(text)
    assert "no pool is defined" in told
    assert "[[pool]]" in hint


@pytest.mark.parametrize("text", ['[pool]\nname = "pod"\n', "pool = 1", 'pool = ["pod"]'])
def test_a_pool_is_an_array_of_tables(text):
    assert complaint(text)[0] == "/etc/pools.toml:1: pool must be written as [[pool]]"


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("name", "/etc/pools.toml:1: name is missing"),
        ("kind", "/etc/pools.toml:1: kind is missing"),
        ("driver", "/etc/pools.toml:1: driver is missing"),
        ("topology", "/etc/pools.toml:1: type is missing"),
    ],
)
def test_a_missing_key_is_told_at_the_line_of_its_pool(missing, told):
    lines = [line for line in (NAMED + POD).splitlines(keepends=True) if not line.startswith(missing)]
    assert complaint("".join(lines))[0] == told


def test_a_missing_key_of_the_second_pool_is_told_there():
    assert complaint(NAMED + POD + '[[pool]]\nkind = "ipu"\n')[0] == "/etc/pools.toml:6: name is missing"


@cases("name", ["", "Pod", "pod_1", "pod 1", "-pod", "pod-", ".pod", "pod:1", "pod/1", "p" * 33, "ü"])
def test_a_pool_with_a_wrong_name_is_refused_at_its_line(name):
    told, hint = complaint(NAMED.replace("pod", name, 2).replace(f"[[{name}l]]", "[[pool]]") + POD)
    assert told == f"/etc/pools.toml:2: pool name {name!r} is not allowed"
    assert "32 lower-case" in hint


@pytest.mark.parametrize("kind", ["", "IPU", "1pu", "i pu", "k" * 33])
def test_a_wrong_kind_is_refused_at_its_line(kind):
    told, hint = complaint(NAMED.replace('"ipu"', f'"{kind}"') + POD)
    assert told == f"/etc/pools.toml:3: kind {kind!r} is not allowed"
    assert "as in ipu" in hint


def test_a_pool_defined_twice_is_told_at_the_second():
    assert complaint(NAMED + POD + NAMED + POD)[0] == "/etc/pools.toml:7: a pool named 'pod' is defined twice"


@pytest.mark.parametrize(
    ("text", "told", "known"),
    [
        ("x = 1\n", "/etc/pools.toml:1: 'x' is not known here", "pool"),
        (NAMED + POD + "domains = 1\n", "/etc/pools.toml:6: 'domains' is not known here", "topology"),
        (NAMED + POD + "[pool.vipu]\nx = 1\n", "/etc/pools.toml:6: 'vipu' is not known here", "simulated"),
        (
            NAMED + topology(type="power-of-two", domain_size=8, max_blok=4),
            "/etc/pools.toml:5: 'max_blok' is not known here",
            "max_block",
        ),
        (
            NAMED + topology(type="any-subset", domain_size=8, blocks=["0"]),
            "/etc/pools.toml:5: 'blocks' is not known here",
            "domain_size",
        ),
    ],
)
def test_an_unknown_key_is_told_with_those_that_are_known(text, told, known):
    message, hint = complaint(text)
    assert message == told
    assert known in hint


@cases(
    ("text", "told"),
    [
        (NAMED.replace('"pod"', "64") + POD, "/etc/pools.toml:2: name must be a string, not a number"),
        (NAMED.replace('"ipu"', "[]") + POD, "/etc/pools.toml:3: kind must be a string, not a list"),
        (NAMED.replace('"simulated"', "true") + POD, "/etc/pools.toml:4: driver must be a string, not true or false"),
        (NAMED + 'topology = "x"\n', "/etc/pools.toml:5: topology must be a table, not a string"),
        (NAMED + "topology = { type = 1 }\n", "/etc/pools.toml:5: type must be a string, not a number"),
        (
            NAMED + topology(type="power-of-two", domain_size="8"),
            "/etc/pools.toml:5: domain_size must be a whole number, not a string",
        ),
        (
            NAMED + 'topology = { type = "power-of-two", domain_size = 8.0 }\n',
            "/etc/pools.toml:5: domain_size must be a whole number, not a number",
        ),
        (
            NAMED + topology(type="catalogue", domain_size=8, blocks="0-7"),
            "/etc/pools.toml:5: blocks must be a list of strings, not a string",
        ),
        (NAMED + POD + "simulated = 1\n", "/etc/pools.toml:6: simulated must be a table, not a number"),
        (NAMED + POD + "resources = 1\n", "/etc/pools.toml:6: resources must be a table, not a number"),
    ],
)
def test_a_wrong_type_is_told_at_its_line(text, told):
    assert complaint(text)[0] == told


@cases(
    ("wanted", "problem"),
    [
        ({"type": "power-of-two"}, "domain_size is missing"),
        ({"type": "power-of-two", "domain_size": 12}, "domain_size = 12 is not a power of two"),
        ({"type": "power-of-two", "domain_size": 0}, "domain_size = 0 is not a power of two"),
        ({"type": "power-of-two", "domain_size": 8, "domains": 0}, "domains = 0 is out of range"),
        ({"type": "power-of-two", "domain_size": 8, "max_block": 16}, "more than the pool's 8 devices"),
        ({"type": "any-subset", "domain_size": -8}, "-8 devices are out of range"),
        ({"type": "any-subset", "domain_size": 10**30}, "devices are out of range"),
        ({"type": "any-subset", "domain_size": 8, "max_block": 9}, "not between 1 and 8"),
        ({"type": "catalogue", "domain_size": 8}, "blocks is missing"),
        ({"type": "catalogue", "domain_size": 8, "blocks": []}, "0 blocks"),
        ({"type": "catalogue", "domain_size": 8, "blocks": ["4-9"]}, "block 4-9 is outside"),
        ({"type": "catalogue", "domain_size": 8, "blocks": ["0-3", "0,1,2,3"]}, "listed twice"),
        ({"type": "catalogue", "domain_size": 8, "blocks": ["all"]}, "'all' is not a list of devices"),
    ],
)
def test_a_topology_that_cannot_be_is_told_at_its_line(wanted, problem):
    told, _ = complaint(NAMED + topology(**wanted))
    assert told.startswith("/etc/pools.toml:5: ")
    assert told.count("/etc/pools.toml") == 1
    assert problem in told


def test_an_unknown_topology_is_told_with_those_that_are_known():
    told, hint = complaint(NAMED + topology(type="torus", domain_size=8))
    assert told == "/etc/pools.toml:5: topology type 'torus' is not known"
    assert hint == "known: power-of-two, any-subset, catalogue"


@pytest.mark.parametrize("amount", ['"64X"', "-1", "true", "1.5", "[]", '"-1G"'])
def test_a_resource_that_is_no_size_is_told_at_its_line(amount):
    told, _ = complaint(NAMED + POD + f"[pool.resources]\nfabric = 1\nmemory = {amount}\n")
    assert told.startswith("/etc/pools.toml:8: ")


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "\0", NAMED + POD + "\0", "#" * (1 << 20) + "\n", "a = " + "9" * 5000],
    ids=range(5),
)
def test_a_hostile_file_is_refused_by_its_name(text):
    assert complaint(text)[0].startswith("/etc/pools.toml")
