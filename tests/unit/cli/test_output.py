"""Every form of output against its golden file. After a wanted change: MOORINGS_GOLDEN=write pytest tests/unit/cli."""

import csv
import io
import json
import os
from pathlib import Path

import pytest
import yaml

from moorings.cli.commands.describe import explanation_text
from moorings.cli.output import (
    OutputFormat,
    TableStyle,
    check_field,
    describe,
    parse_format,
    render_line,
    render_list,
    render_one,
    sort_items,
)
from moorings.cli.resources import CLAIMS, DEVICES, KEYS, KINDS, PARTITIONS, POOLS, RUNS, ResourceKind, group_devices
from moorings.core.model.errors import MooringsError
from moorings.wire.shapes import ExplanationBody
from tests.cases import cases
from tests.unit.cli import samples

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("MOORINGS_GOLDEN") == "write"


def check_golden(name, text):
    path = GOLDEN / name
    if WRITE:
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


@cases("noun", KINDS)
@cases("form", ["table", "wide", "json", "yaml", "name", "csv"])
def test_lists(noun, form):
    check_golden(f"{noun}.{form}.txt", render_list(KINDS[noun], samples.OF_KIND[noun], OutputFormat(form), samples.NOW))


@cases("noun", ["claim", "run"])
@cases("columns", [80, 100, 200])
def test_screens(noun, columns):
    look = TableStyle(width=columns)
    check_golden(
        f"{noun}.{columns}.txt", render_list(KINDS[noun], samples.OF_KIND[noun], OutputFormat(), samples.NOW, look)
    )


@cases("noun", KINDS)
@cases("form", ["table", "wide", "custom-columns=ID:.id,NAME:.name,AT:.createdAt"])
def test_no_line_is_longer_than_the_terminal(noun, form):
    for columns in (24, 40, 80, 120):
        look = TableStyle(width=columns)
        text = render_list(KINDS[noun], samples.OF_KIND[noun], parse_format(form), samples.NOW, look)
        assert max(map(len, text.splitlines())) <= columns


def test_what_matters_less_is_left_out_on_a_narrow_terminal():
    def headers(columns):
        look = TableStyle(width=columns)
        return render_list(RUNS, samples.RUNS, OutputFormat(), samples.NOW, look).splitlines()[0].split()

    assert headers(120) == ["ID", "NAME", "STATE", "DEVICES", "PARTITION", "AGE", "EXIT", "REASON"]
    assert headers(80) == ["ID", "NAME", "STATE", "DEVICES", "EXIT", "REASON"]
    assert headers(70) == ["ID", "NAME", "STATE", "DEVICES", "REASON"]


@pytest.mark.parametrize("noun", ["pool", "partition", "claim", "run", "project"])
def test_descriptions(noun):
    check_golden(f"{noun}.describe.txt", describe(samples.OF_KIND[noun][-1], samples.NOW))


def test_a_description_names_the_variables_of_a_job_and_keeps_their_values_back():
    run = samples.run(environment={"PATH": "/bin", "HF_TOKEN": "hf_secret"}, command=("sh", "-c", "echo a b"))
    text = describe(run, samples.NOW)
    assert "HF_TOKEN, PATH" in text
    assert "hf_secret" not in text
    assert "sh -c 'echo a b'" in text


def test_an_explanation():
    told = ExplanationBody(
        claim="claim-digits", state="PENDING", summary=samples.FULL.message, position=2, reasons=(samples.FULL,)
    )
    check_golden("explanation.txt", explanation_text(told, samples.NOW))


def test_json_and_yaml_are_the_same_document():
    as_json = json.loads(render_list(RUNS, samples.RUNS, OutputFormat("json"), samples.NOW))
    as_yaml = yaml.safe_load(render_list(RUNS, samples.RUNS, OutputFormat("yaml"), samples.NOW))
    assert as_json["apiVersion"] == "moorings/v1"
    assert as_json["kind"] == "RunList"
    assert [item["id"] for item in as_json["items"]] == [run.id for run in samples.RUNS]
    assert as_json == as_yaml


def test_one_item_is_what_the_api_gives_and_no_list():
    document = json.loads(render_one(POOLS, samples.POOLS[0], OutputFormat("json"), samples.NOW))
    assert (document["apiVersion"], document["kind"], document["accelerator"]) == ("moorings/v1", "Pool", "ipu")
    assert document["outOfService"] == 1
    assert json.loads(render_line(POOLS, samples.POOLS[0])) == document


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        (POOLS, samples.POOLS[0]),
        (DEVICES, samples.DEVICES[0]),
        (PARTITIONS, samples.PARTITIONS[0]),
        (CLAIMS, samples.CLAIMS[0]),
        (RUNS, samples.RUNS[0]),
        (KEYS, samples.KEYS[0]),
    ],
    ids=lambda value: value.api if isinstance(value, ResourceKind) else "",
)
def test_one_item_tells_its_version_and_kind_in_every_document(kind, item):
    documents = [
        json.loads(render_one(kind, item, OutputFormat("json"), samples.NOW)),
        yaml.safe_load(render_one(kind, item, OutputFormat("yaml"), samples.NOW)),
        json.loads(render_line(kind, item)),
    ]
    assert [(each["apiVersion"], each["kind"]) for each in documents] == [("moorings/v1", kind.api)] * 3


def test_task_codes_that_nobody_knows_are_left_out():
    assert "Task codes" not in describe(samples.run(task_codes=(None, None)), samples.NOW)
    assert "Task codes:  0, -" in describe(samples.run(task_codes=(0, None)), samples.NOW).replace("   ", "  ")


@pytest.mark.parametrize("path", ["name", ".job.accelerators.size", "job.environment.HOME", "reason.code", "createdAt"])
def test_fields_that_exist(path):
    check_field(RUNS, path)


@pytest.mark.parametrize("path", ["", "nope", "name.nope", "job.nope", "created_at", "reason.code.x"])
def test_fields_that_do_not_exist(path):
    with pytest.raises(MooringsError, match="has no field"):
        check_field(RUNS, path)


def test_an_empty_list_is_an_empty_list_in_json():
    assert json.loads(render_list(POOLS, (), OutputFormat("json"), samples.NOW))["items"] == []


def test_no_headers():
    text = render_list(POOLS, samples.POOLS, OutputFormat("table"), samples.NOW, TableStyle(headers=False))
    assert text.splitlines()[0].startswith("pod256 ")


def test_custom_columns():
    form = parse_format("custom-columns=RUN:.id,SIZE:.job.accelerators.size,GONE:.nothing")
    lines = render_list(RUNS, samples.RUNS[:1], form, samples.NOW).splitlines()
    assert [line.split() for line in lines] == [["RUN", "SIZE", "GONE"], ["run-7f3kq2m4xw2a", "16", "-"]]


@pytest.mark.parametrize("text", ["xml", "custom-columns=", "custom-columns=A", "json=1", "jsonpath={.items}"])
def test_an_unknown_form_is_refused_and_the_known_are_named(text):
    with pytest.raises(MooringsError) as caught:
        parse_format(text)
    assert "table, wide, json" in caught.value.hint


def test_csv_is_read_back():
    nasty = samples.partition(reason='broke, "badly"')
    rows = list(csv.DictReader(io.StringIO(render_list(PARTITIONS, [nasty], OutputFormat("csv"), samples.NOW))))
    assert rows[0]["REASON"] == 'broke, "badly"'


def test_the_last_column_is_cut_to_the_terminal_and_never_elsewhere():
    wide = render_list(RUNS, samples.RUNS, OutputFormat("table"), samples.NOW)
    narrow = render_list(RUNS, samples.RUNS, OutputFormat("table"), samples.NOW, TableStyle(width=90))
    assert max(map(len, wide.splitlines())) > 90
    assert max(map(len, narrow.splitlines())) == 90
    assert "…" in narrow
    ascii_only = render_list(
        RUNS, samples.RUNS, OutputFormat("table"), samples.NOW, TableStyle(width=90, unicode=False)
    )
    assert ascii_only.isascii()
    assert max(map(len, ascii_only.splitlines())) == 90


def test_states_are_painted_and_the_columns_stay():
    def paint(text, colour):
        return f"<{colour}>{text}</>"

    plain_text = render_list(RUNS, samples.RUNS, OutputFormat("table"), samples.NOW)
    painted = render_list(RUNS, samples.RUNS, OutputFormat("table"), samples.NOW, TableStyle(paint=paint))
    assert "<green>RUNNING</>" in painted
    assert "<red>FAILED</>" in painted
    for colour in ("green", "red", "yellow"):
        painted = painted.replace(f"<{colour}>", "")
    assert painted.replace("</>", "") == plain_text


def test_foreign_text_cannot_move_the_cursor_or_break_a_row():
    nasty = samples.partition(reason="\x1b[2Jone\ntwo")
    text = render_list(PARTITIONS, [nasty], OutputFormat("wide"), samples.NOW)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 2


def test_later_rows_stand_under_the_header():
    look = TableStyle(widths=[])
    first = render_list(RUNS, samples.RUNS[:1], OutputFormat("table"), samples.NOW, look)
    later = render_list(
        RUNS, [samples.run(name="x")], OutputFormat("table"), samples.NOW, TableStyle(headers=False, widths=look.widths)
    )
    assert first.splitlines()[1].index("RUNNING") == later.index("RUNNING")


def test_devices_that_are_not_neighbours_or_not_alike_stay_apart():
    devices = [samples.device(index) for index in (0, 1, 3)] + [samples.device(4, owner="user/ann")]
    assert [[device.index for device in row] for row in group_devices(devices)] == [[0, 1], [3], [4]]
    assert sum(len(row) for row in group_devices(samples.DEVICES)) == len(samples.DEVICES)
    assert DEVICES.folded is not None


def test_sorting_by_a_field_puts_numbers_in_order_and_what_has_none_last():
    runs = [samples.run("a", exit_code=10), samples.run("b"), samples.run("c", exit_code=9)]
    assert [run.id for run in sort_items(runs, "exitCode")] == ["c", "a", "b"]
    assert [run.id for run in sort_items(runs, ".id")] == ["a", "b", "c"]
