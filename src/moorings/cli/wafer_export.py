"""The contents of ``moor wafer log-export``: all data on one job, without secrets.

The output is streamed from the controller into the archive, so it may exceed the memory. It is searched for secrets
like everything else: the archive's reader looks for a fault and needs none of them.
"""

from __future__ import annotations

import codecs
import io
import json
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

from moorings.cli.redaction import REDACTED, Redaction, is_secret_name
from moorings.cli.wafer import WaferJob
from moorings.client.client import Client
from moorings.client.requests import EventFilter
from moorings.core.model.errors import MooringsError
from moorings.wire.codec import encode
from moorings.wire.shapes import RunBody

PIECE_CHARS = 1 << 20  # of output searched at once
_CARRY_CHARS_MAX = 1 << 16  # of a key that begins in one piece and ends in the next
_BEGIN, _END = "-----BEGIN ", "-----END "
ABOUT = """\
Job {name}, as of {at}. Made by 'moor wafer log-export'.

job.json      the job, as 'moor wafer get job {name} -o json' shows it
run.json      the run behind it; of its environment only the names
claim.json    its claim on systems and memory
events.json   what happened to both, in order
why.json      while it waits: why, and what would change that
logs/task-N   what task N has written{lines}

What looks like a secret (keys, tokens, passwords) is replaced by "{left_out}", and so are values of the job's secret
variables that the shell of this command has, too: the controller shows no value. Look through it before you send it on.
{missing}"""


def write_export(
    client: Client,
    job: WaferJob,
    run: RunBody,
    to: BinaryIO,
    *,
    at: str,
    lines: int | None,
    known: Mapping[str, str],
) -> list[str]:
    """Write the archive.

    Args:
        client: of the controller.
        job: as shown.
        run: the same job.
        to: the file for the archive.
        at: the time, for the README.
        lines: only this many of the last lines of each task; None: all.
        known: the caller's variables: those of the job may have been theirs, and the controller shows no value.

    Returns:
        The parts that could not be collected, a sentence each.

    Raises:
        MooringsError: ``owner.denied``: the job belongs to another user.
    """
    secrets = {name: known.get(name, value) for name, value in run.job.environment.items() if is_secret_name(name)}
    redaction = Redaction(secrets.values())
    missing: list[str] = []
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, make in _records(client, job, run):
            try:
                made = redaction.data(make(), hidden=("environment",))
            except MooringsError as error:
                missing.append(f"{name}: {error.detail}")
            else:
                text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
                _write(archive, job, name, [text])
        for task in range(run.job.tasks):
            try:
                output = _redacted(redaction, _text(client.logs(run.id, task=task)))
                _write(archive, job, f"logs/task-{task}.log", output if lines is None else _last(output, lines))
            except MooringsError as error:
                if error.code == "owner.denied":
                    raise
                missing.append(f"logs/task-{task}.log: {error.detail}")
        only = f" (the last {lines} lines)" if lines is not None else ""
        gone = "\nCould not be had:\n" + "".join(f"  {one}\n" for one in missing) if missing else ""
        about = ABOUT.format(name=job.meta.name, at=at, lines=only, left_out=REDACTED, missing=gone)
        _write(archive, job, "README.txt", [about])
    return missing


def _records(client: Client, job: WaferJob, run: RunBody) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "job.json", lambda: encode(job)
    yield "run.json", lambda: encode(run)
    yield "events.json", lambda: _events(client, run)
    if run.claim is not None:
        claim = run.claim
        yield "claim.json", lambda: encode(client.get_claim(claim))
        if job.is_queued:
            yield "why.json", lambda: encode(client.explain_claim(claim))


def _events(client: Client, run: RunBody) -> object:
    """The events of the run and of its claim, each once."""
    found = {event.seq: event for event in client.events_after(EventFilter(run=run.id), 0)}
    if run.claim is not None:
        found |= {event.seq: event for event in client.events_after(EventFilter(claim=run.claim), 0)}
    return [encode(found[seq]) for seq in sorted(found)]


def _write(archive: zipfile.ZipFile, job: WaferJob, name: str, pieces: Iterable[str]) -> None:
    member = zipfile.ZipInfo(f"{job.meta.name}/{name}", time.localtime()[:6])
    member.external_attr, member.compress_type = 0o600 << 16, zipfile.ZIP_DEFLATED
    with archive.open(member, "w", force_zip64=True) as file:
        for piece in pieces:
            file.write(piece.encode("utf-8", "replace"))


def _text(chunks: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _redacted(redaction: Redaction, chunks: Iterable[str]) -> Iterator[str]:
    return (redaction.text(piece) for piece in split_at_lines(chunks))


def split_at_lines(chunks: Iterable[str], most: int = PIECE_CHARS) -> Iterator[str]:
    """The same text in pieces of about ``most`` characters, cut at line ends and never within a private key."""
    kept: list[str] = []
    length = 0
    for chunk in chunks:
        kept.append(chunk)
        length += len(chunk)
        if length >= most:
            text = "".join(kept)
            cut = _cut(text)
            if cut:
                yield text[:cut]
            kept, length = [text[cut:]], len(text) - cut
    yield "".join(kept)


def _cut(text: str) -> int:
    """Where ``text`` may be cut; a line without an end is cut where it is, lest it fill the memory."""
    cut = text.rfind("\n") + 1 or len(text)
    begun = text.rfind(_BEGIN, 0, cut)
    if begun >= 0 and text.find(_END, begun, cut) < 0 and cut - begun <= _CARRY_CHARS_MAX:
        return begun
    return cut


def _last(pieces: Iterable[str], lines: int) -> Sequence[str]:
    kept: deque[str] = deque(maxlen=lines)
    for piece in pieces:
        kept.extend(io.StringIO(piece))
    return kept
