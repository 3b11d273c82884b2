"""``moor simulate``, ``replay`` and ``estimate``: what they print and write, and which file is to blame."""

import csv
import json
from xml.etree import ElementTree

import pytest

from moorings.cli.simulation import read_pools, read_projects
from moorings.cli.timeline_svg import COLUMNS, _means, timeline
from moorings.core.forecast.simulation import UsageLevel
from moorings.core.model.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.shapes import EstimateBody, ExplanationBody
from tests.unit.client.recorded import Reply

TRACE = """arrives,runs,size,project,limit
0,60m,64,guests,
10,10m,16,lab,20m
20,10m,16,lab,20m
30,10m,64,guests,1h
"""
PROJECTS = '[[project]]\nname = "lab"\nguarantee = ["pool=16x2"]\n[[project]]\nname = "guests"\n'
POOL = """[[pool]]
name = "g"
kind = "gpu"
driver = "simulated"
topology = { type = "any-subset", domain_size = 8 }
"""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def moor(moor, tmp_path, monkeypatch):
    """Runs a command in a folder with a trace; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(TRACE)
    (tmp_path / "projects.toml").write_text(PROJECTS)
    (tmp_path / "slow.toml").write_text('min_run = "1h"\n')
    return moor


def rows(text):
    return [line.split() for line in text.splitlines()]


# -- simulate


def test_waits_are_told_by_size(moor):
    code, out, err = moor("simulate", "jobs.csv", "--pool", "power-of-two:1x64")
    assert (code, err) == (0, "")
    assert rows(out)[:4] == [
        ["SIZE", "JOBS", "MEAN", "MEDIAN", "P95", "LONGEST"],
        ["16", "2", "59m", "59m", "59m", "59m"],
        ["64", "2", "34m", "0s", "69m", "69m"],
        ["all", "4", "47m", "59m", "69m", "69m"],
    ]


def test_two_policies_stand_side_by_side(moor):
    given = ("--pool", "power-of-two:1x64", "--projects", "projects.toml", "--compare", "slow.toml", "-o", "json")
    _, out, _ = moor("simulate", "jobs.csv", *given)
    usual, slow = json.loads(out)["reports"]
    assert (usual["policy"], slow["policy"]) == ("the defaults", "slow.toml")
    assert (usual["guaranteed"]["longestS"], slow["guaranteed"]["longestS"]) == (290.0, 3590.0)
    _, out, _ = moor("simulate", "jobs.csv", *given[:-2])
    assert rows(out)[0][:4] == ["SIZE", "JOBS", "MEAN-A", "MEAN-B"]
    assert "A: the defaults   B: slow.toml" in out


def test_files_are_written(moor, tmp_path):
    code, _, err = moor("simulate", "jobs.csv", "--pool", "power-of-two:1x64", "--out", "result/here")
    assert (code, err.startswith("wrote result/here/report.json")) == (0, True)
    folder = tmp_path / "result" / "here"
    assert json.loads((folder / "report.json").read_text())["reports"][0]["jobs"] == 4
    jobs = list(csv.DictReader((folder / "jobs.csv").read_text().splitlines()))
    assert [(one["name"], one["size"], one["waits"]) for one in jobs][:2] == [
        ("line-2", "64", "0.0"),
        ("line-3", "16", "3590.0"),
    ]
    assert ElementTree.parse(folder / "timeline.svg").getroot().tag == f"{SVG}svg"


def test_sizes_that_no_pool_has_are_refused_or_rounded_up(moor, tmp_path):
    (tmp_path / "odd.csv").write_text("arrives,runs,size\n0,1,3\n0,1,5\n0,1,65\n")
    _, out, _ = moor("simulate", "odd.csv", "--pool", "power-of-two:1x64", "-o", "json")
    assert json.loads(out)["reports"][0]["refused"] == 3
    _, out, _ = moor("simulate", "odd.csv", "--pool", "power-of-two:1x64", "--round-up", "-o", "json")
    told = json.loads(out)["reports"][0]
    assert ([one["sizes"] for one in told["waits"]], told["refused"]) == ([[4, 4], [8, 8]], 1)


@pytest.mark.parametrize(
    ("name", "text", "option", "told"),
    [
        ("bad.toml", "reserve = 3\n", "--policy", "bad.toml:1: reserve must be true or false"),
        ("bad.toml", "reserve = 3\n", "--compare", "bad.toml:1: reserve must be true or false"),
        ("bad.toml", "\n[[project]]\nnam = 1\n", "--projects", "bad.toml:2: name is missing"),
        ("bad.toml", '[[project]]\nname = "a"\nsize = 1\n', "--projects", "bad.toml:3: 'size' is not known here"),
        ("bad.toml", '[[project]]\nname = "a/b"\n', "--projects", "bad.toml:2: "),
        (
            *("bad.toml", '[[project]]\nname = "a"\n[[project]]\nname = "a"\n', "--projects"),
            "bad.toml:4: project 'a' is defined twice",
        ),
        (
            "bad.toml",
            '[[project]]\nname = "a"\nguarantee = ["x=1"]\n',
            "--projects",
            "bad.toml:3: there is no pool 'x'",
        ),
        ("bad.toml", '[[project]]\nname = "a"\nguarantee = ["pool"]\n', "--projects", "bad.toml:3: guarantee 'pool'"),
        ("bad.toml", '[[project]]\nname = "a"\nuser_limits = { ann = "8" }\n', "--projects", "bad.toml:3: ann must be"),
        ("bad.toml", '[[project]]\nname = "a"\nguarantee = ["pool=64x2"]\n', "--projects", "bad.toml:2: pool 'pool'"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(moor, tmp_path, name, text, option, told):
    (tmp_path / name).write_text(text)
    code, out, err = moor("simulate", "jobs.csv", "--pool", "power-of-two:1x64", option, name)
    assert (code != 0, out) == (True, "")
    assert err.startswith(f"error: {told}")


def test_a_trace_that_is_not_there_is_told(moor):
    code, _, err = moor("simulate", "none.csv", "--pool", "any-subset:8")
    assert code == 2
    assert err.startswith("error: none.csv cannot be read: No such file or directory (trace.invalid)\nhint: ")


def test_jobs_of_a_kind_that_no_pool_has_are_counted_as_such(moor, tmp_path):
    (tmp_path / "kinds.csv").write_text("arrives,runs,size,kind\n0,1,4,gpu\n0,1,4,ipu\n0,1,3,ipu\n0,1,3,gpu\n")
    _, out, _ = moor("simulate", "kinds.csv", "--pool", "power-of-two:1x64", "--out", "result")
    assert [line.split() for line in out.splitlines()[-2:]] == [
        ["jobs", "of", "a", "kind", "no", "pool", "has", "2"],
        ["jobs", "of", "a", "size", "no", "pool", "has", "1"],
    ]
    told = json.loads((tmp_path / "result" / "report.json").read_text())["reports"][0]
    assert (told["refused"], told["unknownKind"]) == (3, 2)
    jobs = list(csv.DictReader((tmp_path / "result" / "jobs.csv").read_text().splitlines()))
    assert [job["why"] for job in jobs] == [
        *("no pool has devices of kind gpu", "", "no pool has partitions of 3", "no pool has devices of kind gpu"),
    ]
    (tmp_path / "kinds.csv").write_text("arrives,runs,size,kind\n0,1,4,gpu\n0,1,4,ipu\n")
    assert "of a size" not in moor("simulate", "kinds.csv", "--pool", "power-of-two:1x64")[1]


def test_projects_in_a_file_may_limit_users(tmp_path):
    (tmp_path / "limits.toml").write_text('[[project]]\nname = "a"\nuser_devices_max = 4\nuser_limits = { ann = 8 }\n')
    lab = read_projects(tmp_path / "limits.toml", ()).by_name["a"]
    assert [lab.user_limit(name) for name in ("ann", "bob")] == [8, 4]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[[project]]\nname = "a"\nguarantee = ["nope=16x1"]\n', "the only pool is pool"),
        ('[[project]]\nname = "a"\nguarantee = ["pol=16x1"]\n', "the only pool is pool"),
        ('[[project]]\nname = "a"\nguarantee = ["nope=16"]\n', "the only pool is pool"),
        ('[[project]]\nname = "a"\n[[project]]\nname = "a"\n', "keep one of them"),
        ('[[project]]\nname = "a"\nweight = "2"\n', "each [[project]] has a name of its own"),
        ("project = 3\n", "each [[project]] has a name of its own"),
    ],
)
def test_a_file_of_projects_that_cannot_be_used_comes_with_a_hint(moor, tmp_path, text, hint):
    (tmp_path / "bad.toml").write_text(text)
    _, _, err = moor("simulate", "jobs.csv", "--pool", "power-of-two:1x64", "--projects", "bad.toml")
    assert f"\nhint: {hint}" in err


def test_the_pools_that_a_guarantee_may_name_are_told(moor, tmp_path):
    (tmp_path / "pools.toml").write_text("".join(POOL.replace('"g"', f'"p{number}"') for number in range(10)))
    (tmp_path / "bad.toml").write_text('[[project]]\nname = "a"\nguarantee = ["nope=1x1"]\n')
    _, _, err = moor("simulate", "jobs.csv", "--pool", "pools.toml", "--projects", "bad.toml")
    assert "\nhint: the pools are p0, p1, p2, p3, p4, p5, p6, p7 and 2 more\n" in err


@pytest.mark.parametrize("spec", ["", ".", "none.toml", "power-of-two:6", "twice.toml", "wrong.toml"])
def test_a_pool_that_cannot_be_used_comes_with_a_hint(moor, tmp_path, spec):
    (tmp_path / "twice.toml").write_text(POOL * 2)
    (tmp_path / "wrong.toml").write_text(POOL.replace('"gpu"', "3"))
    code, out, err = moor("simulate", "jobs.csv", "--pool", spec)
    assert (code, out) == (2, "")
    assert "(pools.invalid)\nhint: " in err
    assert ("'' is no pool" in err) is (spec == "")


def test_pools_are_a_file_or_a_word(moor, tmp_path):
    (tmp_path / "pools.toml").write_text(
        '[[pool]]\nname = "g"\nkind = "gpu"\ndriver = "simulated"\n'
        'topology = { type = "any-subset", domains = 2, domain_size = 8 }\n'
    )
    assert [(pool.name, pool.kind, pool.topology.n_devices) for pool in read_pools("pools.toml")] == [("g", "gpu", 16)]
    assert read_pools("any-subset:512")[0].topology.n_devices == 512
    assert read_pools("power-of-two:6x64")[0].topology.max_block == 256
    with pytest.raises(MooringsError, match="is no pool"):
        read_pools("power-of-two:6")
    _, out, _ = moor("simulate", "jobs.csv", "--pool", "pools.toml", "-o", "json")
    assert [one["sizes"] for one in json.loads(out)["reports"][0]["waits"]] == [[16, 16]]


# -- the picture


def test_a_picture_says_what_it_shows_and_holds_foreign_text_as_text():
    levels = [UsageLevel(0.0, 0, 0), UsageLevel(10.0, 64, 16), UsageLevel(7200.0, 0, 0)]
    root = ElementTree.fromstring(timeline("<b>&co", [("now", levels), ("then", levels[:1])], 64))
    told = [text.text for text in root.iter(f"{SVG}text")]
    assert {"<b>&co", "now", "then", "devices in use", "devices waited for", "time, hours", "all 64"} <= {*told}
    assert len(list(root.iter(f"{SVG}polyline"))) == 4
    assert "prefers-color-scheme: dark" in root.findtext(f"{SVG}style", "")


@pytest.mark.parametrize("levels", [[], [UsageLevel(0.0, 0, 0)], [UsageLevel(5.0, 8, 0), UsageLevel(5.5, 0, 0)]])
def test_a_picture_of_next_to_nothing_is_a_picture(levels):
    assert ElementTree.fromstring(timeline("t", [("a", levels)], 8)).tag == f"{SVG}svg"


def test_the_curve_keeps_the_area():
    means = _means([(0.0, 4), (1.0, 0), (30.0, 6), (99.5, 1)], 0.0, 100.0)
    assert len(means) == COLUMNS
    assert sum(means) * 100.0 / COLUMNS == pytest.approx(4 * 1 + 6 * 69.5 + 0.5)


# -- estimate


def test_an_estimate_asks_with_all_that_was_given(server, moor):
    server.on("POST", "/v1/estimate", Reply(encode(EstimateBody(starts_now=True))))
    code, out, _ = moor(
        *("estimate", "--ipus", "16", "--pool", "p", "--project", "lab", "--priority", "3", "--time", "2h"),
        *("--preemptible", "--gcds", "2"),
    )
    assert (code, out) == (0, "would start now\n")
    assert server.seen[0].json == {
        "size": 16,
        "kind": "ipu",
        "pool": "p",
        "gcds": 2,
        "project": "lab",
        "priority": 3,
        "timeLimitS": 7200.0,
        "preemptible": True,
    }


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (EstimateBody(starts_now=False, why="a has no limit"), "start time unknown: a has no limit"),
        (EstimateBody(starts_now=False, starts_at="2001-01-01T00:00:00Z"), "would start at 2001-01-01T00:00:00Z at"),
    ],
)
def test_an_estimate_is_a_sentence(server, moor, body, told):
    server.on("POST", "/v1/estimate", Reply(encode(body)))
    assert moor("estimate", "--ipus", "1")[1].startswith(told)


def test_an_explanation_tells_when_if_it_is_asked(server, moor):
    told = ExplanationBody(
        claim="claim-a",
        state="PENDING",
        summary="no room",
        estimate=EstimateBody(starts_now=False, why="b has no limit"),
        options=("ask for 8 devices",),
    )
    server.on("GET", "/v1/claims/a/explain", Reply(encode(told)))
    _, out, _ = moor("explain", "claim", "a", "--when")
    assert server.seen[0].query == {"when": "true"}
    assert out.splitlines()[1:] == [
        "when: start time unknown: b has no limit",
        "to start now: ask for 8 devices",
    ]
