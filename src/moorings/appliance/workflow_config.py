"""From arguments, params file and program to one value: every error is found before anything is queued."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from moorings.appliance.arguments import Arguments
from moorings.appliance.checkpoints import CheckpointFile, find_damage, parse_checkpoint_name
from moorings.appliance.params import ParamsFile, read_params
from moorings.appliance.program import BATCH_SIZE, Program, check_program, params_type
from moorings.appliance.schemas import Mode, Optimizer, RunConfig
from moorings.core.model.errors import MooringsError
from moorings.wire.shapes import PoolBody
from moorings.workloads.appliance import APPLIANCE_KIND, WORKFLOW_JOBS_MAX, parse_priority
from moorings.workloads.labels import check_labels

GIB: Final = 1 << 30
MEMORY: Final = "memory"  # among a pool's resources
SLURM_JOB: Final = "SLURM_JOB_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowConfig:
    """The checked configuration of a workflow.

    Attributes:
        config: the section ``runconfig``, with the command line's values.
        origins: the origin of each given value of ``config``: ``--num_csx``, or file and line.
        params: all sections with defaults, as JSON values.
        labels: of every job.
        priority: in our queue.
        checkpoint: the one named by the user, or None.
    """

    mode: Mode
    config: RunConfig
    origins: Mapping[str, str]
    source: str
    params: Mapping[str, Mapping[str, Any]]
    model_dir: Path
    compile_dir: Path
    mount_dirs: tuple[str, ...]
    python_paths: tuple[str, ...]
    labels: Mapping[str, str]
    priority: int
    checkpoint: CheckpointFile | None
    compile_only: bool
    validate_only: bool

    @property
    def includes_training(self) -> bool:
        """Whether it trains."""
        return self.mode != "eval"

    @property
    def last_step(self) -> int:
        """The last step of the training."""
        return self.config.max_steps or 0

    def origin_of(self, name: str) -> str:
        """The origin of a value of ``runconfig``."""
        return self.origins.get(name, self.source)


def build_workflow_config(
    arguments: Arguments, program: Program, environment: Mapping[str, str], folder: Path
) -> WorkflowConfig:
    """The workflow of files and arguments, checked.

    Args:
        arguments: the command line.
        program: the user's.
        environment: of this process.
        folder: the base of relative paths.

    Raises:
        MooringsError: ``params.invalid``, with the option or the line; ``program.invalid``, ``priority.invalid``,
            ``label.invalid``.
    """
    check_program(program)
    document = read_params(folder / arguments.params, arguments.params)
    written = document.section("runconfig", RunConfig)
    origins = {name: document.location_of("runconfig", name) for name in asdict(written)}
    origins |= {name: f"--{name}" for name in arguments.runconfig}
    config = replace(written, **arguments.runconfig)
    try:
        config.check()
    except ValueError as error:
        name = str(error).partition(":")[0]
        raise params_error(origins.get(name, document.source), str(error)) from error
    mode = _check_mode(config, program, origins, document)
    params = _sections(document, program, mode, config)
    document.finish()
    return WorkflowConfig(
        mode=mode,
        config=config,
        origins=origins,
        source=document.source,
        params={**params, "runconfig": _plain(asdict(replace(config, mode=mode)))},
        model_dir=_path(folder, config.model_dir or "model_dir"),
        compile_dir=_compile_dir(config, environment, folder),
        mount_dirs=_folders(folder, config.mount_dirs, origins["mount_dirs"], "mount_dirs"),
        python_paths=_folders(folder, config.python_paths, origins["python_paths"], "python_paths"),
        labels=_labels(origins["job_labels"], config, environment),
        priority=_priority(origins["job_priority"], config.job_priority),
        checkpoint=_checkpoint(arguments, folder),
        compile_only=arguments.compile_only,
        validate_only=arguments.validate_only,
    )


def check_pools(wish: WorkflowConfig, pools: Iterable[PoolBody]) -> None:
    """Check that the jobs could ever run in these pools.

    Raises:
        MooringsError: ``params.invalid``, ``kind.unknown``.
    """
    ours = [pool for pool in pools if pool.accelerator == APPLIANCE_KIND]
    if not ours:
        raise MooringsError(
            "kind.unknown",
            "the controller has no pool of wafer-scale systems",
            hint=f'its pools file needs a pool with kind = "{APPLIANCE_KIND}"; is this the right controller?',
        )
    wanted, sizes = wish.config.num_csx, {int(size) for pool in ours for size in pool.available}
    if wanted > max(sizes, default=0):
        most = max(sizes, default=0)
        systems = "1 system" if most == 1 else f"{most} systems"
        raise params_error(
            wish.origin_of("num_csx"), f"num_csx: {wanted} is more than there are: {systems} in a pool at most"
        )
    if wanted not in sizes:
        allowed = ", ".join(map(str, sorted(sizes)))
        raise params_error(
            wish.origin_of("num_csx"), f"num_csx: {wanted} systems cannot be allocated together; allowed: {allowed}"
        )
    fitting = [pool for pool in ours if str(wanted) in pool.available]
    for name, needed_gi, among in (
        ("compile_memory_gi", wish.config.compile_memory_gi, ours),
        ("execute_memory_gi", wish.config.execute_memory_gi, fitting),
    ):
        memory = [pool.resources.get(MEMORY) for pool in among]
        known = [each for each in memory if each is not None]
        if known and len(known) == len(memory) and max(known) < needed_gi * GIB:
            most_gi = max(known) / GIB
            raise params_error(
                wish.origin_of(name), f"{name}: {needed_gi} GiB is more than the appliance has ({most_gi:g} GiB)"
            )


def requires_memory(pools: Iterable[PoolBody]) -> bool:
    """Whether jobs must request memory of the management node: every pool of systems has some."""
    ours = [pool for pool in pools if pool.accelerator == APPLIANCE_KIND]
    return bool(ours) and all(MEMORY in pool.resources for pool in ours)


def create_folders(wish: WorkflowConfig) -> None:
    """Make the folders that jobs write to, and test that they are writable.

    Raises:
        MooringsError: ``params.invalid``.
    """
    for name, path in (("model_dir", wish.model_dir), ("compile_dir", wish.compile_dir)):
        try:
            if wish.validate_only:
                _check_writable(path)
                continue
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise params_error(
                wish.origin_of(name), f"{name}: {path} cannot be written: {error.strerror or error}"
            ) from error


def _check_writable(path: Path) -> None:
    if path.is_dir():
        with tempfile.TemporaryFile(dir=path):
            return
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise NotADirectoryError(0, f"{existing} is no folder")
    with tempfile.TemporaryFile(dir=existing):
        pass


def _check_jobs(config: RunConfig, origins: Mapping[str, str]) -> None:
    if config.mode != "train_and_eval" or config.max_steps is None or config.eval_frequency is None:
        return
    jobs = 2 + 2 * -(-config.max_steps // config.eval_frequency)
    if jobs > WORKFLOW_JOBS_MAX:
        raise params_error(
            origins["eval_frequency"],
            f"eval_frequency: {config.max_steps} steps with an eval each {config.eval_frequency} are {jobs} jobs, "
            f"and a start may have {WORKFLOW_JOBS_MAX}",
            "evaluate less often, or give a smaller max_steps and start again from its checkpoint",
        )


def _check_mode(config: RunConfig, program: Program, origins: Mapping[str, str], document: ParamsFile) -> Mode:
    if config.mode is None:
        raise params_error(document.source, "no mode is given", "--mode train, eval or train_and_eval")
    for side, source in (("train", program.train), ("eval", program.eval)):
        if side in config.mode.split("_") and source is None:
            raise params_error(
                origins["mode"],
                f"mode: {config.mode} needs a source of batches to {side} with, and run.py gives none",
                f"run(Model, ..., {side}=Source)",
            )
    if config.mode != "eval" and config.max_steps is None:
        raise params_error(document.location_of("runconfig"), "runconfig.max_steps is missing", "or give --max_steps")
    if config.eval_frequency is not None and config.mode == "train" and origins["mode"] != "--mode":
        raise params_error(origins["eval_frequency"], "eval_frequency: mode is train, and nothing is evaluated")
    _check_jobs(config, origins)
    return config.mode


def _sections(document: ParamsFile, program: Program, mode: Mode, config: RunConfig) -> dict[str, Any]:
    sections = {
        "model": _plain(asdict(document.section("model", params_type(program.model)))),
        "optimizer": _plain(asdict(document.section("optimizer", Optimizer))),
        "train_input": {},
        "eval_input": {},
    }
    for side, source in (("train", program.train), ("eval", program.eval)):
        name = f"{side}_input"
        needed = side in mode.split("_")
        if source is None or not (needed or document.has(name)):
            continue
        sections[name] = _plain(asdict(document.section(name, params_type(source))))
        batch = sections[name][BATCH_SIZE]
        if not isinstance(batch, int) or batch < 1:
            raise params_error(
                document.location_of(name, BATCH_SIZE), f"{name}.{BATCH_SIZE}: {batch} is not at least 1"
            )
        if needed and batch % config.num_csx:
            raise params_error(
                document.location_of(name, BATCH_SIZE),
                f"{name}.{BATCH_SIZE}: {batch} cannot be divided by num_csx {config.num_csx}",
            )
    return sections


def _checkpoint(arguments: Arguments, folder: Path) -> CheckpointFile | None:
    if arguments.checkpoint_path is None:
        return None
    path = _path(folder, arguments.checkpoint_path)
    found = parse_checkpoint_name(path)
    if found is None:
        raise params_error("--checkpoint_path", f"{path.name} is not called checkpoint_STEP.npz")
    problem = find_damage(path)
    if problem is not None:
        raise params_error("--checkpoint_path", f"{path} cannot be used: {problem}")
    return found


def _labels(where: str, config: RunConfig, environment: Mapping[str, str]) -> dict[str, str]:
    labels = dict(label.split("=", 1) for label in config.job_labels)
    if environment.get(SLURM_JOB):
        labels[SLURM_JOB] = environment[SLURM_JOB]
    try:
        check_labels(labels)
    except MooringsError as error:
        raise MooringsError(error.code, f"{where}: {error.detail}", hint=error.hint) from error
    return labels


def _priority(where: str, text: str) -> int:
    try:
        return parse_priority(text)
    except MooringsError as error:
        raise MooringsError(error.code, f"{where}: {error.detail}", hint=error.hint) from error


def _folders(folder: Path, given: Iterable[str], where: str, name: str) -> tuple[str, ...]:
    paths = [_path(folder, each) for each in given]
    for path in paths:
        if not path.is_dir():
            raise params_error(
                where, f"{name}: {path} is no folder" if path.exists() else f"{name}: there is no {path}"
            )
        if not os.access(path, os.R_OK | os.X_OK):
            raise params_error(where, f"{name}: {path} cannot be read")
    return tuple(map(str, paths))


def _compile_dir(config: RunConfig, environment: Mapping[str, str], folder: Path) -> Path:
    if config.compile_dir:
        return _path(folder, config.compile_dir)
    cache = environment.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path(environment.get("HOME") or "~").expanduser() / ".cache"
    return root / "moorings" / "compile"


def _path(folder: Path, given: str) -> Path:
    return Path(os.path.abspath(folder / Path(given).expanduser()))  # noqa: PTH100 - links stay as they are written


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON is any of several types
    """Tuples as lists, as in JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def params_error(where: str, problem: str, hint: str = "") -> MooringsError:
    """``params.invalid``: the origin of a value, and its error, which begins with its name."""
    problem = problem.removeprefix(f"{where.removeprefix('--')}: ")  # for an option the origin is already the name
    return MooringsError("params.invalid", f"{where}: {problem}", hint=hint)
