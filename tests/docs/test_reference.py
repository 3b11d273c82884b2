"""The generated pages say what the code says, and leave nothing out."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from moorings.api import openapi
from moorings.app.docs import deployment_files, pages
from moorings.app.documents import files, tables
from moorings.app.documents.errors import REMEDIES
from moorings.app.documents.fields import FIELDS
from moorings.app.documents.files import FileKey
from moorings.app.settings import Settings
from moorings.core.model import pools as pools_module
from moorings.core.model.bindings import Binding, GcdBinding, Rendezvous, task_environment
from moorings.core.model.errors import MooringsError
from moorings.core.model.pools import parse_pools
from moorings.core.model.toml_table import TomlTable
from moorings.drivers.simulated.settings import SimulatedSettings
from moorings.kubernetes.operator.metrics import OperatorMetrics
from moorings.kubernetes.proxy.metrics import ProxyMetrics
from moorings.kubernetes.proxy.partition_manager import PartitionManager
from moorings.terminal.configuration import NAMES
from moorings.wire.errors import ERRORS
from moorings.wire.operations import OPERATIONS
from moorings.workloads import jobs
from moorings.workloads.jobs import parse_job
from tests.docs.pages import ROOT

SOURCE = ROOT / "src" / "moorings"


def test_the_committed_pages_are_what_the_code_says() -> None:
    made = pages()
    here = {name: (ROOT / "docs" / name).read_text() for name in made if (ROOT / "docs" / name).exists()}
    assert [name for name, text in made.items() if here.get(name) != text] == [], "write them anew: make docs"
    manual = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs" / "man").glob("man*/*")}
    assert manual == {name for name in made if name.startswith("man/")}


def test_what_a_site_copies_is_what_the_code_says() -> None:
    made = deployment_files()
    assert [name for name, text in made.items() if (ROOT / name).read_text() != text] == [], "write it anew: make docs"


def test_every_error_has_a_remedy_and_every_operation_says_who_may() -> None:
    assert set(REMEDIES) == set(ERRORS)
    assert all(operation.callers for operation in OPERATIONS)
    assert {code for operation in OPERATIONS for code in operation.errors.split()} <= set(ERRORS)


def test_every_field_of_a_request_is_told_and_no_other() -> None:
    schemas = openapi.document()["components"]["schemas"]
    sent = {
        (name, field) for name, each in schemas.items() if not name.endswith("Body") for field in each["properties"]
    }
    assert set(FIELDS) == sent


def test_every_metric_of_operator_and_proxy_is_told() -> None:
    texts = (
        OperatorMetrics(jobs=dict, partitions=list, waiting=int, leads=bool).text(),
        ProxyMetrics(PartitionManager("lab", {}, "0", int)).text(),
    )
    for text in texts:
        names = re.findall(r"^# TYPE (moorings_\w+) ", text.decode(), re.MULTILINE)
        given = {name for name in names if not name.endswith("_created")}
        assert len(given) > 5
        assert [name for name in sorted(given) if f"| `{name}` " not in tables.metrics_page()] == []


# -- the two files people write: the parsers are listened to ---------------------------------------------------------

Asked = dict[tuple[str, str], object]  # (table, key): the default


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The keys that parsers ask for, with their defaults, by table."""
    found: Asked = {}

    def place(table: TomlTable) -> str:
        return ".".join(str(part) for part in table._path if not isinstance(part, int) and part != "pool")

    take, has = TomlTable._take, TomlTable.has

    def listening_take(self: TomlTable, key: str, default: object) -> object:
        found.setdefault((place(self), key), default)
        return take(self, key, default)

    def listening_has(self: TomlTable, key: str) -> bool:
        found.setdefault((place(self), key), None)
        return has(self, key)

    monkeypatch.setattr(TomlTable, "_take", listening_take)
    monkeypatch.setattr(TomlTable, "has", listening_has)
    return found


def told(keys: Sequence[FileKey]) -> Asked:
    return {(key.table, key.name): tomllib.loads(f"v = {key.default}")["v"] if key.default else None for key in keys}


def without_tables(found: Asked) -> Asked:
    inside = {table for table, _ in found}
    return {(table, key): default for (table, key), default in found.items() if key not in inside and default != {}}


def test_the_job_file_s_keys_are_the_parser_s(asked: Asked) -> None:
    parse_job(files.example_of(jobs), source="job.toml", folder="/", submitter={})
    parse_job('command = "x"', source="job.toml", folder="/", submitter={}, default_name="job")
    found = without_tables(asked)
    found["environment", "set"] = None  # a table of names that people choose
    found.pop(("environment.set", "OMP_NUM_THREADS"))
    found["", "name"] = None  # the file's own name
    contract = {("checkpoint", "warn"): 120, ("checkpoint", "grace"): 30}  # asked for only if they are there
    assert {**found, **contract} == told(files.JOB)


def test_the_pools_file_s_keys_are_the_parser_s(asked: Asked) -> None:
    parse_pools(files.example_of(pools_module))
    for kind, rest in (("any-subset", ""), ("catalogue", ', blocks = ["0-1"]')):
        topology = f'{{ type = "{kind}", domain_size = 2{rest} }}'
        parse_pools(f'[[pool]]\nname = "p"\nkind = "k"\ndriver = "simulated"\ntopology = {topology}\n')
    found = without_tables(asked)
    assert found.pop(("", "pool")) == []
    assert found.pop(("resources", "memory"), "unasked") is None
    assert found.pop(("topology", "max_block")) == 64, "the largest domain, which the page says in words"
    wanted = told(files.POOLS)
    for words in (("resources", "NAME"), ("topology", "max_block")):
        assert wanted.pop(words) is None
    assert found == wanted


def parse(keys: Sequence[FileKey], text: str) -> object:
    if keys is files.POOLS:
        return parse_pools(text)
    return parse_job(text, source="job.toml", folder="/", submitter={})


@pytest.mark.parametrize("key", [key for key in (*files.JOB, *files.POOLS) if key.required], ids=lambda key: key.name)
def test_what_is_required_is_missed(key: FileKey) -> None:
    keys = files.JOB if key in files.JOB else files.POOLS
    text = files.example_of(jobs if keys is files.JOB else pools_module)
    without = (
        re.sub(rf"(?m)^{key.name} = .*$", "", text) if not key.table else re.sub(rf"{key.name} = [^,}}]*,? ?", "", text)
    )
    assert without != text
    with pytest.raises(MooringsError, match=f"{key.name} is missing"):
        parse(keys, without)


def test_the_simulated_driver_s_settings_are_all_told(asked: Asked) -> None:
    SimulatedSettings.read(TomlTable.parse("", source="pools.toml", code="pools.invalid"))
    assert {f"`{name}`" for _, name in asked} == {key for key, _, _ in files.simulated_rows()}
    assert all(meaning for _, _, meaning in files.simulated_rows())


# -- the environment -----------------------------------------------------------------------------------------------

VARIABLE = re.compile(r"(MOORINGS|XDG)_[A-Z_]+|NO_COLOR|TERM|HOME|STATE_DIRECTORY|NOTIFY_SOCKET|WATCHDOG_[A-Z]+")


def mentioned(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value):
            yield node.value


def test_every_variable_in_the_sources_is_on_the_page() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if not path.is_relative_to(SOURCE / "testing")]
    no_names = {"TERM", "MOORINGS_", "MOORINGS_PROXY_"}  # a signal, too; prefixes
    found = {name for path in paths for name in mentioned(path)} - no_names
    told_of = {*tables.READ, *tables.SET, *(f"MOORINGS_{name.upper()}" for name in NAMES)}
    assert len(found) > 15
    assert found - told_of == set()
    settings = {
        str(item.metadata["environment"])
        for item in Settings.__dataclass_fields__.values()
        if "environment" in item.metadata
    }
    assert settings <= set(tables.READ)


def test_every_variable_of_a_job_is_on_the_page() -> None:
    binding = Binding("p", {"IPUOF_VIPU_API_HOST": ""}, (GcdBinding(0, (), "file", "text"),))
    for folder in ("/f", None):
        given = task_environment(binding, 0, Rendezvous("127.0.0.1", 1), run="r", files_folder=folder)
        assert given.keys() - tables.SET.keys() == set()
    text = (SOURCE / "local" / "supervisor.py").read_text() + (
        SOURCE / "drivers" / "simulated" / "driver.py"
    ).read_text()
    found = set(re.findall(r'"((?:MOORINGS|IPUOF|CUDA)_[A-Z_]+)"', text))
    assert len(found) > 4
    assert found - set(tables.SET) == set()
