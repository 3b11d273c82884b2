"""``metrics.md``, ``environment.md``, ``checks.md``, ``limits.md``: metrics, variables, the doctors' checks, limits."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.metrics import MetricWrapperBase

from moorings.api import metrics as of_controllers
from moorings.app.documents.markdown import GENERATED, code, table
from moorings.doctor.checks import CHECKS, JOB_CHECKS, SLURM_CHECKS, docs_link
from moorings.kubernetes.operator import metrics as of_operators
from moorings.kubernetes.proxy import metrics as of_proxies
from moorings.terminal.configuration import NAMES, flag_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# Variables that the programs read. Those of settings come from the settings themselves.
READ: dict[str, tuple[str, str]] = {
    "MOORINGS_ACCESS_KEY_FILE": ("moor", "a file (0600) with the access key, instead of the key itself"),
    "MOORINGS_CONFIG": ("moor", "a configuration file that is read first"),
    "MOORINGS_CREDENTIALS": ("moor", "the credentials file, instead of `~/.config/moorings/credentials.toml`"),
    "MOORINGS_WORKERS": ("launcher", "set by the operator: how many worker Pods it waits for"),
    "MOORINGS_PARTITION": ("launcher", "set by the operator: `namespace/job/uid/instance`"),
    "MOORINGS_RESET": ("launcher", "set by the operator: `1`, the partition may have been used and is cleaned first"),
    "MOORINGS_PROXY_URL": ("launcher", "set by the operator: where the proxy is"),
    "MOORINGS_PROXY_TOKEN_FILE": ("launcher", "set by the operator: the token for the proxy"),
    "MOORINGS_PROXY_CA_FILE": ("launcher", "the authority of a proxy that speaks HTTPS"),
    "MOORINGS_BESIDE": (
        "plugin",
        "set by `moor exec`, `attach` and `port-forward`: their steps lease no GCD of the job",
    ),
    "MOORINGS_NO_COLOR": ("moor", "set: no colours"),
    "NO_COLOR": ("moor", "set: no colours, as in every other program"),
    "TERM": ("moor", "`dumb`: no colours"),
    "HOME": ("both", "where `~` is"),
    "XDG_CONFIG_HOME": ("moor", "instead of `~/.config`"),
    "XDG_CACHE_HOME": ("moor", "instead of `~/.cache`, for names that the shell completes"),
    "XDG_DATA_HOME": ("both", "instead of `~/.local/share`, where podman keeps a person's images"),
    "XDG_RUNTIME_DIR": ("jobs", "where an appliance's systems meet their weight servers; without it `/tmp`"),
    "XDG_STATE_HOME": ("both", "instead of `~/.local/state`"),
    "MOORINGS_DATA": ("both", "the controller's data folder"),
    "MOORINGS_DATABASE": ("controller", "a `postgresql://` URL, password included"),
    "MOORINGS_JOBS_AS_ROOT": (
        "controller",
        "`true`: started by root alone, it also starts jobs of `user` keys, as root",
    ),
    "MOORINGS_SLURM_RUNS": (
        "moor",
        "the folder of your runs on Slurm, which the nodes see, too, instead of `slurm` in the data folder",
    ),
    "MOORINGS_LOG_LEVEL": ("controller", "`debug`, `info`, `warning` or `error`"),
    "MOORINGS_TLS_CERT": ("controller", "its certificate's file"),
    "MOORINGS_TLS_KEY": ("controller", "the file of its private key"),
    "MOORINGS_TLS_CLIENT_CA": ("controller", "the authority of the certificates that clients must present"),
    "MOORINGS_TLS_CA": ("controller", "the authority of the other controllers' certificates"),
    "STATE_DIRECTORY": ("controller", "its data folder; set by systemd"),
    "NOTIFY_SOCKET": ("controller", "systemd's socket for status messages"),
    "WATCHDOG_USEC": ("controller", "systemd's watchdog interval, in microseconds"),
    "WATCHDOG_PID": ("controller", "for which process `WATCHDOG_USEC` was meant"),
}
_READERS = {"server_user": "moor, agent"}  # of settings that others read, too
# Variables that jobs get.
SET: dict[str, str] = {
    "RANK": "the task's number, from 0",
    "LOCAL_RANK": "its number on this host; on one machine the same",
    "WORLD_SIZE": "how many tasks the job has",
    "MASTER_ADDR": "address where task 0 may listen for the others",
    "MASTER_PORT": "a port there that was free when the run started",
    "MOORINGS_RUN_ID": "the run's id",
    "MOORINGS_JOB_ID": "the same, for programs that also run under other schedulers",
    "MOORINGS_PARTITION_ID": "the partition's name",
    "MOORINGS_DEVICES": "the task's devices, as `pod64:0,pod64:1`",
    "IPUOF_CONFIG_PATH": "file form: the task's IPUoF file, readable by its user alone, gone at the end",
    "IPUOF_VIPU_API_HOST": "API form: address of the vendor's controller",
    "IPUOF_VIPU_API_PORT": "API form: its port",
    "IPUOF_VIPU_API_PARTITION_ID": "API form: the partition's name there",
    "IPUOF_VIPU_API_GCD_ID": "API form: the task's GCD",
    "IPUOF_VIPU_API_TIMEOUT": "API form: how long the vendor's runtime may wait for it, in seconds",
    "CUDA_VISIBLE_DEVICES": "of GPUs: the devices' numbers",
    "MOORINGS_CHECKPOINT_DIR": "the job file's `checkpoint.directory`, if it has one",
    "MOORINGS_RESUME_FROM": "the newest whole checkpoint, if it resumes (a job with `resumable = true`)",
    "MOORINGS_RESUME_STEP": "its step, if its name has one",
    "MOORINGS_TERMINAL": "of task 0 on Slurm, if it has a terminal: a file by which `moor attach` finds that",
    "MOORINGS_ARRAY_INDEX": "of an array: the index of this run; also as `SLURM_ARRAY_TASK_ID`",
    "MOORINGS_ARRAY_ID": "the array's id",
    "MOORINGS_ARRAY_SIZE": "how many runs it has",
}

_Row = tuple[str, str, str]  # what, unit, where in the code

LIMITS: dict[str, tuple[_Row, ...]] = {
    "Names and numbers": (
        ("characters of the name of a claim or partition", "", "core.model.claims:NAME_CHARS_MAX"),
        ("characters of an owner", "", "core.model.claims:OWNER_CHARS_MAX"),
        ("characters of an idempotency key", "", "core.model.claims:KEY_CHARS_MAX"),
        ("devices of a claim", "", "core.model.claims:SIZE_MAX"),
        ("a priority, up and down", "", "core.model.claims:PRIORITY_MAX"),
        ("a time limit", "s", "core.model.claims:TIME_LIMIT_S_MAX"),
        ("the shortest lease", "s", "core.model.claims:LEASE_S_MIN"),
        ("the longest lease", "s", "core.model.claims:LEASE_S_MAX"),
        ("blocks that may break under a claim before it fails", "", "core.model.claims:BROKEN_BLOCKS_LIMIT"),
    ),
    "Jobs": (
        ("characters of a job's name", "", "workloads.jobs:JOB_NAME_CHARS_MAX"),
        ("tasks", "", "workloads.jobs:TASKS_MAX"),
        ("words of a command", "", "workloads.commands:COMMAND_ARGS_MAX"),
        ("characters of a command", "", "workloads.commands:COMMAND_CHARS_MAX"),
        ("characters of an environment", "", "workloads.environment:ENVIRONMENT_CHARS_MAX"),
        ("bytes of one of its variables", "", "workloads.environment:VARIABLE_BYTES_MAX"),
        ("setup lines of a job", "", "workloads.environment:SETUP_LINES_MAX"),
        ("their characters", "", "workloads.environment:SETUP_CHARS_MAX"),
    ),
    "Pools": (
        ("pools", "", "core.model.pools:POOLS_MAX"),
        ("devices of a pool", "", "core.model.topology:DEVICES_MAX"),
        ("blocks of a catalogue", "", "core.model.topology:CATALOGUE_BLOCKS_MAX"),
        ("characters of a TOML file", "", "core.model.toml_table:TEXT_CHARS_MAX"),
    ),
    "The API": (
        ("a body", "bytes", "api.limits:BODY_BYTES_MAX"),
        ("a wait", "s", "api.limits:WAIT_S_MAX"),
        ("items of a page", "", "api.parameters:LIMIT_MAX"),
        ("runs of a page", "", "api.routes.runs:RUNS_A_PAGE_MAX"),
        ("characters of a query value", "", "api.parameters:VALUE_CHARS_MAX"),
        ("open connections", "", "api.limits:DEFAULT_LIMITS.connections_max"),
        ("of them from one address", "", "api.limits:DEFAULT_LIMITS.connections_per_address_max"),
        ("requests served or waiting at once", "", "api.limits:DEFAULT_LIMITS.requests_max"),
        ("of them of one access key", "", "api.limits:DEFAULT_LIMITS.requests_per_key_max"),
        ("answers that are held for a `wait`", "", "api.limits:DEFAULT_LIMITS.waits_max"),
        ("of them for one access key", "", "api.limits:DEFAULT_LIMITS.waits_per_key_max"),
        ("open event streams", "", "api.limits:DEFAULT_LIMITS.watches_max"),
        ("of them for one access key", "", "api.limits:DEFAULT_LIMITS.watches_per_key_max"),
        ("open streams of a run's output", "", "api.limits:DEFAULT_LIMITS.follows_max"),
        ("of them for one access key", "", "api.limits:DEFAULT_LIMITS.follows_per_key_max"),
    ),
}


def metrics_page() -> str:
    """The page of the metrics."""
    text = GENERATED + "# Metrics\n\n## Of a controller\n\n"
    text += (
        "`GET /metrics` gives them in Prometheus' text form, without a key. Labels are pools, states, sizes, results\n"
    )
    text += "and routes: never a user or a claim. [Monitor](../how-to/monitor.md) explains their use.\n\n"
    text += _metrics(of_controllers.metric_families())
    text += "\nBesides these, `process_*`: processor time, memory and open files of the controller's process.\n"
    text += "\n## Of the operator of IPUJobs\n\nFor those alone whom the cluster lets read them: "
    text += (
        "[how](../how-to/kubernetes-install.md#metrics). Labels are\nnamespaces, states and results: never a job.\n\n"
    )
    text += _metrics(of_operators.families())
    text += "\n## Of the proxy of IPUJobs\n\n`GET /metrics` of the proxy needs no authentication.\n\n"
    text += _metrics(of_proxies.families())
    return text + "\nBesides these, `process_*`, of the proxy's process.\n"


def _metrics(found: Iterable[Metric | MetricWrapperBase]) -> str:
    rows: list[tuple[str, str, str, str]] = []
    for one in found:
        (family,) = one.describe() if isinstance(one, MetricWrapperBase) else (one,)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(map(code, one._labelnames))  # type: ignore[union-attr] # noqa: SLF001 - there is no public name for it
        rows.append((code(name), family.type, labels, family.documentation))
    rows.sort(key=lambda row: row[0].strip("`"))
    return table(("metric", "type", "labels", "meaning"), rows)


def environment_page() -> str:
    """The page of the environment variables."""
    text = GENERATED + "# Environment variables\n\n## Variables that are read\n\nAn empty variable counts as none.\n\n"
    settings = [(f"MOORINGS_{name.upper()}", _READERS.get(name, "moor"), _setting(name)) for name in NAMES]
    rows = sorted([*settings, *((name, who, said) for name, (who, said) in READ.items())])
    text += table(("variable", "by", "meaning"), [(code(name), who, said) for name, who, said in rows])
    text += (
        "\n`launcher`: by the launcher of an IPUJob, before its program starts. The proxy of IPUJobs reads each of its "
    )
    text += "flags as `MOORINGS_PROXY_<FLAG>`.\n"
    text += "\n`both`: by `moor` and by the controller. PostgreSQL's library reads its own, as `PGPASSFILE`.\n"
    text += "\n## Variables of a job\n\n"
    text += "A task gets the variables its job file names, and these; nothing else is passed on.\n"
    text += "File form is what the embedded engine uses; API form is given by `GET /v1/claims/{id}/binding`.\n\n"
    text += table(("variable", "what"), [(code(name), said) for name, said in SET.items()])
    return text + "\nA job file cannot set them, nor any other that begins with `MOORINGS_` or `IPUOF_`.\n"


def _setting(name: str) -> str:
    flag = flag_of(name)
    return f"the [setting](cli.md#configuration) `{name}`" + (f"; the flag is `{flag}`" if flag else "; it has no flag")


def checks_page() -> str:
    """The page of the doctors' checks."""
    text = GENERATED + "# Checks\n\nA check passes if this is so; the link says what to do if it is not.\n"
    for command, checks in (
        ("moor doctor", CHECKS),
        ("moor doctor --job", JOB_CHECKS),
        ("moor slurm doctor", SLURM_CHECKS),
    ):
        rows = [(f"[{code(check)}](../{docs_link(check).removeprefix('docs/')})", so) for check, so in checks.items()]
        text += f"\n## {code(command)}\n\n" + table(("check", "passes if"), rows)
    return text


def limits_page() -> str:
    """The page of the limits."""
    text = (
        GENERATED
        + "# Limits\n\nWhat is refused beyond, and where it stands in the code. Connections, bodies and parsers have\n"
    )
    text += "more, which only a hostile client meets: [hostile input](../explanation/hostile-input.md).\n"
    for title, rows in LIMITS.items():
        text += f"\n## {title}\n\n" + table(("what", "at most", "in the code"), _limits(rows))
    return text


def _limits(rows: Iterable[_Row]) -> list[tuple[str, str, str]]:
    return [(what, f"{_value(place):,.0f} {unit}".strip(), code(place)) for what, unit, place in rows]


def _value(place: str) -> float:
    module, _, names = place.partition(":")
    found: object = importlib.import_module(f"moorings.{module}")
    for name in names.split("."):
        found = getattr(found, name)
    assert isinstance(found, int | float), place
    return found
