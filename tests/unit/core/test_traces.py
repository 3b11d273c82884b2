"""Traces: what may stand in one, which complaint names which line, and the numbers told of a simulation."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.core.forecast.simulation import SimulatedJob, simulate
from moorings.core.forecast.traces import SIZES_SHOWN_MAX, parse_trace, size_classes, summarize
from moorings.core.model.devices import PoolName
from moorings.core.model.errors import MooringsError
from moorings.core.model.policy import Policy
from moorings.core.model.projects import Project, Projects
from moorings.core.model.topology import Pool, PowerOfTwo
from tests.cases import cases

POOL = Pool(PoolName("pod8"), "ipu", "simulated", PowerOfTwo(1, 8, 8))


def job(name, arrives_s, runs_s, size, **more):
    return SimulatedJob(name=name, arrives_s=arrives_s, runs_s=runs_s, size=size, **more)


def test_the_needed_columns_are_enough_and_the_first_job_arrives_at_nought():
    jobs = parse_trace("size,arrives,runs\n4,100,60\n2,40,1.5\n")
    assert jobs == (job("line-2", 60.0, 60.0, 4), job("line-3", 0.0, 1.5, 2))


def test_every_column_reaches_the_job():
    text = (
        "name,arrives,runs,size,project,user,priority,limit,kind,preemptible,resumable,colour\n"
        "a,2026-01-31T12:00:00Z,30m,16,lab,ann,-5,1:00:00,gpu,no,yes,blue\n"
        'b,2026-01-31T13:00:10+01:00,5m,1,,,,,,,no,"red, or so"\n'
    )
    ann = {"project": "lab", "subject": "ann", "priority": -5, "limit_s": 3600.0, "kind": "gpu", "preemptible": False}
    assert parse_trace(text) == (job("a", 0.0, 1800.0, 16, **ann), job("b", 10.0, 300.0, 1, resumable=False))


def test_published_traces_are_read_as_they_are():
    text = "timestamp,duration,num_gpus,gpu_time\n2017-10-03 08:00:05,120,8,1\n2017-10-03 08:00:00,60,1,1\n"
    assert [(one.arrives_s, one.runs_s, one.size) for one in parse_trace(text)] == [(5.0, 120.0, 8), (0.0, 60.0, 1)]


def test_a_job_ends_at_its_limit():
    (one,) = parse_trace("arrives,runs,size,limit\n0,100,1,50\n")
    assert (one.runs_s, one.limit_s) == (50.0, 50.0)


def test_jobs_that_name_no_kind_have_the_usual_one():
    assert parse_trace("arrives,runs,size\n0,1,1\n", kind="gpu")[0].kind == "gpu"


@cases(
    ("text", "told"),
    [
        ("", "t.csv:1: the column 'arrives' is missing"),
        ("arrives,runs\n1,2\n", "t.csv:1: the column 'size' is missing"),
        ("arrives,runs,size,num_gpus\n", "t.csv:1: there are two columns 'size'"),
        ("arrives,runs,size\n", "t.csv: there is no job in it"),
        ("arrives,runs,size\n0,1,1\n\n0,1\n", "t.csv:4: 2 values stand under 3 columns"),
        ("arrives,runs,size\nsoon,1,1\n", "t.csv:2: arrives 'soon' is no time"),
        ("arrives,runs,size\nnan,1,1\n", "t.csv:2: arrives 'nan' is no time"),
        ("arrives,runs,size\n1,1,1\n2026-01-31,1,1\n", "t.csv:3: arrives '2026-01-31' is not written as in the first"),
        ("arrives,runs,size\n0,1,1\n1e10,1,1\n", "t.csv:3: arrives '1e10' is more than 100 years behind"),
        ("arrives,runs,size\n0,long,1\n", "t.csv:2: runs 'long' is no length of time"),
        ("arrives,runs,size\n0,-1,1\n", "t.csv:2: runs '-1' is out of range"),
        ("arrives,runs,size\n0,nan,1\n", "t.csv:2: runs 'nan' is out of range"),
        ("arrives,runs,size\n0,1,0\n", "t.csv:2: size '0' is out of range"),
        ("arrives,runs,size\n0,1,1.5\n", "t.csv:2: size '1.5' is no whole number"),
        ("arrives,runs,size,priority\n0,1,1,high\n", "t.csv:2: priority 'high' is no whole number"),
        ("arrives,runs,size,preemptible\n0,1,1,maybe\n", "t.csv:2: preemptible 'maybe' is neither yes nor no"),
        ("arrives,runs,size,name\n0,1,1,a\n0,1,1,a\n", "t.csv:3: name 'a' stands in line 2 already"),
        ('arrives,runs,size\n0,1,"1\n', "t.csv:3: "),
    ],
)
def test_a_complaint_names_file_line_and_column(text, told):
    with pytest.raises(MooringsError) as caught:
        parse_trace(text, source="t.csv")
    assert caught.value.code == "trace.invalid"
    assert caught.value.detail.startswith(told)


def test_a_project_must_be_defined_if_any_is():
    text = "arrives,runs,size,project\n0,1,1,\n0,1,1,lab\n0,1,1,lap\n"
    assert [one.project for one in parse_trace(text)] == ["default", "lab", "lap"]
    with pytest.raises(MooringsError) as caught:
        parse_trace(text, source="t.csv", projects=Projects([Project(name="lab")]))
    assert caught.value.detail == "t.csv:4: project 'lap' is not in the file of projects"
    assert "did you mean lab" in caught.value.hint


@given(st.text(max_size=200))
def test_any_text_is_a_trace_or_refused(text):
    code = ""
    try:
        found = len(parse_trace("arrives,runs,size\n" + text))
    except MooringsError as error:
        found, code = 0, error.code
    assert (found > 0) is (code == "")
    assert code in ("", "trace.invalid")


def test_the_numbers_are_those_of_the_jobs():
    jobs = [job("a", 0, 100, 8), job("b", 0, 50, 4), job("c", 0, 50, 4), job("d", 60, 30, 8), job("e", 0, 1, 3)]
    told = summarize(simulate([POOL], jobs, Policy()))
    assert [(one.sizes, one.jobs, one.mean_s, one.longest_s) for one in told.waits] == [
        ("4", 2, 100.0, 100.0),
        ("8", 2, 45.0, 90.0),
    ]
    assert (told.every.jobs, told.every.median_s, told.every.p95_s) == (4, 90.0, 100.0)
    assert (told.jobs, told.refused, told.unknown_kind, told.unstarted, told.n_devices) == (5, 1, 0, 0, 8)
    assert (told.utilisation, told.utilisation_arriving, told.span_s) == (1.0, 1.0, 180.0)
    assert (told.moves, told.yields, told.guaranteed.jobs, told.projects) == (0, 0, 0, {})


def test_projects_are_told_apart_if_there_are_several():
    jobs = [job("a", 0, 10, 8, project="x"), job("b", 0, 10, 8, project="y")]
    told = summarize(simulate([POOL], jobs, Policy()))
    assert {name: waits.mean_s for name, waits in told.projects.items()} == {"x": 0.0, "y": 10.0}


@given(st.sets(st.integers(1, 5000), min_size=1))
def test_every_size_is_in_one_class(sizes):
    classes = size_classes(sizes)
    assert [sum(least <= size <= most for least, most in classes) for size in sorted(sizes)] == [1] * len(sizes)
    assert len(classes) <= max(SIZES_SHOWN_MAX, 14)
    assert list(classes) == sorted(classes)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30))
def test_ranks_lie_between_the_least_and_the_longest(runs):
    told = summarize(simulate([POOL], [job(str(at), 0, one, 8) for at, one in enumerate(runs)], Policy())).every
    ranks = [0.0, *(one for one in (told.median_s, told.p95_s, told.longest_s) if one is not None)]
    assert len(ranks) == 4
    assert ranks == sorted(ranks)
    waits = [sum(round(one * 1e6) for one in runs[:at]) / 1e6 for at in range(len(runs))]
    assert told.mean_s == pytest.approx(fmean(waits), abs=1e-3)
