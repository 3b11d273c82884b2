"""The faults file: a text to edit, which adds faults to a running controller's simulated hardware.

::

    [[fault]]
    kind = "timeout_after_success"
    calls = ["create"]
    probability = 0.1

    [[fault]]
    kind = "agent_down"
    devices = "0-3"

It is read when its time, size or inode has changed. An invalid file only changes the reported complaint: a mistake in
it must not take the hardware away. Refused: a command or a signal, because not every test can send one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from moorings.core.model.driver_results import ResultCode
from moorings.core.model.errors import MooringsError
from moorings.core.model.toml_table import TomlTable
from moorings.core.model.topology import Block
from moorings.drivers.simulated.faults import ORDERS, Fault, FaultKind, VendorCall
from moorings.drivers.simulated.partition import VendorState
from moorings.drivers.simulated.settings import NAME_CHARS_MAX, read_restart_state, read_time_s

TIMES_MAX = 1_000_000
FACTOR_MAX = 1_000_000.0

_CHANCE = ("probability", "times")
_WHOM = ("names", "devices")
_CALL = ("calls", *_WHOM, *_CHANCE)

# The keys of each kind, besides ``kind``: a key without effect is a mistake, and reported.
_KEYS: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.TIMEOUT_BEFORE: _CALL,
    FaultKind.TIMEOUT_AFTER_SUCCESS: _CALL,
    FaultKind.ERROR_ON_RESULT: _CALL,
    FaultKind.REJECT: _CALL,
    FaultKind.NAME_TOO_LONG: ("chars", *_WHOM, *_CHANCE),
    FaultKind.AGENT_DOWN: ("devices", "probability", "answer"),
    FaultKind.SLOW: ("factor", *_CALL),
    FaultKind.HANG: ("seconds", *_CALL),
    FaultKind.LYING_UNKNOWN: ("raw", *_WHOM, *_CHANCE),
    FaultKind.LISTING_FAILS: _CHANCE,
    FaultKind.LISTING_EMPTY: _CHANCE,
    FaultKind.LISTING_PARTIAL: (*_WHOM, *_CHANCE),
    FaultKind.BREAKS_WHILE_PROVISIONING: (*_WHOM, *_CHANCE),
    FaultKind.BREAKS_WHILE_ACTIVE: ("seconds", *_WHOM, *_CHANCE),
    FaultKind.VANISHES: ("seconds", *_WHOM, *_CHANCE),
    FaultKind.REMOVAL_FAILS: (*_WHOM, *_CHANCE),
    FaultKind.RESET_FAILS: (*_WHOM, *_CHANCE),
    FaultKind.RESTART: ("seconds", "state", *_CHANCE),
    FaultKind.STRAY: ("seconds", *_WHOM, *_CHANCE),
}
# Calls other than create, reset and remove can only be lost or late: they have no effect to refuse or spoil.
_ALSO: dict[FaultKind, frozenset[VendorCall]] = {
    FaultKind.TIMEOUT_BEFORE: frozenset({VendorCall.BINDING}),
    FaultKind.HANG: frozenset({VendorCall.LIST, VendorCall.BINDING}),
}


class FaultsFile:
    """A faults file, read again after each change.

    Attributes:
        problem: the problem of the current file; empty if none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._print: tuple[int, int, int] | None = None
        self.problem = ""

    def read_if_changed(self) -> tuple[Fault, ...] | None:
        """Return the faults of the file if it has changed since the last call and is valid; else None."""
        try:
            status = self._path.stat()
            now = (status.st_mtime_ns, status.st_size, status.st_ino)
        except FileNotFoundError:
            now = None
        except OSError as error:
            self.problem = f"{self._path.name}: {error}"
            return None
        if now == self._print:
            return None
        self._print = now
        try:
            faults = parse_faults(self._path.read_text("utf-8"), source=self._path.name) if now else ()
        except (OSError, UnicodeDecodeError, MooringsError) as error:
            self.problem = str(error) if isinstance(error, MooringsError) else f"{self._path.name}: {error}"
            return None
        self.problem = ""
        return faults


def parse_faults(text: str, *, source: str = "faults.toml") -> tuple[Fault, ...]:
    """Return the faults of a faults file, in its order.

    Raises:
        MooringsError: ``config.invalid``; the message names file, line and key.
    """
    top = TomlTable.parse(text, source=source, code="config.invalid")
    tables = top.tables("fault")
    top.reject_unknown_keys()
    return tuple(_fault(table) for table in tables)


def _fault(table: TomlTable) -> Fault:
    kind = table.text("kind")
    if kind not in set(FaultKind):
        table.fail_at("kind", f"fault kind {kind[:40]!r} is not known", hint=f"known: {', '.join(FaultKind)}")
    fault = Fault(kind=FaultKind(kind))
    for key in _KEYS[fault.kind]:
        if table.has(key):
            fault = _READERS[key](table, fault)
    _finish(table, fault.kind)
    return fault


def _finish(table: TomlTable, kind: FaultKind) -> None:
    for key in table.keys():
        if key != "kind" and key not in _KEYS[kind]:
            table.fail_at(key, f"{key!r} is not known for {kind}", hint=f"known: {', '.join(sorted(_KEYS[kind]))}")


def _calls(table: TomlTable, fault: Fault) -> Fault:
    possible = ORDERS | _ALSO.get(fault.kind, frozenset())
    calls = table.strings("calls")
    for call in calls:
        if call not in possible:
            hint = f"known: {', '.join(sorted(possible))}"
            table.fail_at("calls", f"{call[:40]!r} is no call that {fault.kind} can trouble", hint)
    return replace(fault, calls=frozenset(VendorCall(call) for call in calls))


def _names(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, names=table.strings("names"))


def _devices(table: TomlTable, fault: Fault) -> Fault:
    try:
        return replace(fault, devices=Block.parse(table.text("devices")))
    except MooringsError as error:
        if error.code != "block.invalid":
            raise
        table.fail_at("devices", error.detail, error.hint)


def _probability(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, probability=table.within("probability", table.number("probability"), 0, 1))


def _times(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, times=_whole(table, "times", TIMES_MAX))


def _seconds(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, seconds=read_time_s(table, "seconds", 0))


def _factor(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, factor=table.within("factor", table.number("factor"), 0, FACTOR_MAX))


def _chars(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, chars=_whole(table, "chars", NAME_CHARS_MAX))


def _raw(table: TomlTable, fault: Fault) -> Fault:
    raw = table.text("raw")
    if raw in set(VendorState):
        table.fail_at("raw", f"raw = {raw!r} is a state that is known", hint="write one that is not, as in PS_???")
    return replace(fault, raw=raw)


def _state(table: TomlTable, fault: Fault) -> Fault:
    return replace(fault, state=read_restart_state(table, "state", "kept"))


def _answer(table: TomlTable, fault: Fault) -> Fault:
    answers = {"broken": ResultCode.BROKEN, "unavailable": ResultCode.UNAVAILABLE}
    answer = table.text("answer")
    if answer not in answers:
        table.fail_at("answer", f"answer = {answer[:40]!r} is not known", hint=f"write {' or '.join(answers)}")
    return replace(fault, answer=answers[answer])


def _whole(table: TomlTable, key: str, most: int) -> int:
    return table.within(key, table.integer(key), 0, most)


_READERS: dict[str, Callable[[TomlTable, Fault], Fault]] = {
    "calls": _calls,
    "names": _names,
    "devices": _devices,
    "probability": _probability,
    "times": _times,
    "seconds": _seconds,
    "factor": _factor,
    "chars": _chars,
    "raw": _raw,
    "state": _state,
    "answer": _answer,
}
