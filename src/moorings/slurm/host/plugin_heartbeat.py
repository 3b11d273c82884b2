"""A slurmd's report to the agent that it has loaded the plugin; ``deploy/slurm/moorings_hello.h`` sends it.

One line each way, as in a step's request (``bind_protocol``), with the payload::

    moorings 1 hello
    node=n1
    run=fedcba9876543210
    age_ms=1500
    nonce=0123456789abcdef
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError

GREETING = b"moorings 1 hello\n"
_REQUEST = re.compile(
    rb"moorings 1 hello\nnode=([A-Za-z0-9._-]{1,255})\nrun=([0-9a-f]{16})\n"
    rb"age_ms=(0|[1-9][0-9]{0,12})\nnonce=([0-9a-f]{16})\n"
)


@dataclass(frozen=True, slots=True)
class PluginHeartbeat:
    """A slurmd's report that it has loaded the plugin, repeated every minute while it lives.

    Attributes:
        node: its NodeName, or its machine's name where it was started without one.
        run: 16 hexadecimal digits that identify this run of slurmd.
        age_ms: time since it loaded the plugin; not a time of day, because the node's clock may be wrong.
        nonce: 16 hexadecimal digits, new for each report.
    """

    node: str
    run: str
    age_ms: int
    nonce: str


def build_request(hello: PluginHeartbeat) -> bytes:
    """Return the payload of a node's credential."""
    return GREETING + f"node={hello.node}\nrun={hello.run}\nage_ms={hello.age_ms}\nnonce={hello.nonce}\n".encode(
        "ascii"
    )


def parse_request(payload: bytes) -> PluginHeartbeat:
    """Return a node's report.

    Raises:
        MooringsError: ``node.invalid``.
    """
    found = _REQUEST.fullmatch(payload)
    if found is None:
        hint = "is the plugin of another release?"
        raise MooringsError("node.invalid", "what a slurmd says of its plugin cannot be read", hint=hint)
    return PluginHeartbeat(found[1].decode(), found[2].decode(), int(found[3]), found[4].decode())


def build_reply(hello: PluginHeartbeat, *, noted: bool) -> bytes:
    """Return the payload of the agent's credential; not ``noted``: the node must repeat its report."""
    status = "ok" if noted else "retry"
    return f"node={hello.node}\nnonce={hello.nonce}\nstatus={status}\n".encode("ascii")
