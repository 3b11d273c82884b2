"""Many processes, one sum: a small all-reduce over TCP.

Rank 0 listens at MASTER_ADDR:MASTER_PORT and the others connect: a star, with rank 0 in the middle. Everyone sends
its part, rank 0 combines the parts *in the order of the ranks* and sends the one result to all. So every rank has
the same bits, and a second run has them too; a ring would be faster for large vectors, and harder to read.

Nobody waits for ever. Joining and every exchange have a deadline; the end of a peer closes its connection, which
ends the exchange at once; and a rank that fails says why to those it is connected to, so all of them can print it.

The run's id in the greeting keeps strangers out by mistake (a reused port, a job that has not quite ended), not by
malice: it is no secret. A partition's network is the place for that.

Refused: `multiprocessing` and MPI. The first cannot leave one machine, and the second is not on every machine.
"""

import contextlib
import json
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

JOIN_TIMEOUT_S = 60.0  # processes of one job start seconds apart, not minutes
EXCHANGE_TIMEOUT_S = 120.0  # a step takes milliseconds; the rest is patience with a busy machine
GREETING_TIMEOUT_S = 2.0  # how long one who begins a greeting and does not end it, or does not read, holds us up
RETRY_S = 0.05

PROTOCOL = "moorings-digits/1"
FRAME_BYTES_MAX = 1 << 26

# Every message is a frame: what it is (one byte), how long it is, and the payload.
HEADER = struct.Struct("!cI")
GREETING, WELCOME, REDUCE, GATHER, FAILURE = b"H", b"W", b"R", b"G", b"F"


class RendezvousError(Exception):
    """The processes could not meet, or one of them is gone."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among its peers, and where they meet."""

    run_id: str
    rank: int
    world_size: int
    address: str
    port: int


class Group:
    """The processes that have met. Every rank must make the same calls in the same order.

    A context manager: leaving it by an exception tells the peers what happened before the connections close.
    """

    def __init__(self, place: Place, links: dict[int, socket.socket], timeout_s: float) -> None:
        self.rank = place.rank
        self.world_size = place.world_size
        self._links = links  # rank 0 is linked to all the others, each of the others to rank 0
        self._timeout_s = timeout_s

    def all_reduce(self, values: Vector) -> Vector:
        """The sum of everyone's `values` `(n,)`, added in the order of the ranks: the same bits for every rank."""

        def add(parts: list[bytes]) -> bytes:
            total = np.frombuffer(parts[0], "<f8").copy()
            for rank, part in enumerate(parts):
                if len(part) != len(parts[0]):
                    raise RendezvousError(f"rank {rank} sent {len(part)} bytes to a sum of {len(parts[0])}")
                if rank > 0:
                    total += np.frombuffer(part, "<f8")
            return total.tobytes()

        return np.frombuffer(self._exchange(REDUCE, values.astype("<f8").tobytes(), add), "<f8").copy()

    def all_gather(self, text: str) -> list[str]:
        """Everyone's `text`, by rank."""

        def listed(parts: list[bytes]) -> bytes:
            return json.dumps([part.decode() for part in parts]).encode()

        gathered: list[str] = json.loads(self._exchange(GATHER, text.encode(), listed))
        return gathered

    def _exchange(self, kind: bytes, payload: bytes, combine: Callable[[list[bytes]], bytes]) -> bytes:
        """What `combine` makes of everyone's payloads; only rank 0 calls it."""
        deadline = time.monotonic() + self._timeout_s
        if self.rank != 0:
            # If rank 0 has gone, what it said before it went explains more than a failed send: continue and read.
            with contextlib.suppress(OSError):
                _send(self._links[0], kind, payload, deadline)
            return _expect(self._links[0], kind, deadline, "rank 0")
        result = combine(self._collect(kind, payload, deadline))
        for rank, link in self._links.items():
            try:
                _send(link, kind, result, deadline)
            except OSError as error:
                raise RendezvousError(f"rank {rank} has gone: {error}") from error
        return result

    def _collect(self, kind: bytes, payload: bytes, deadline: float) -> list[bytes]:
        """Everyone's payloads by rank; taken as they come, so that a peer's end is seen while another is awaited."""
        parts = {0: payload}
        with selectors.DefaultSelector() as selector:
            for rank, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, rank)
            while len(parts) < self.world_size:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    silent = _numbers(set(range(self.world_size)) - set(parts))
                    raise RendezvousError(f"nothing from rank {silent} for {self._timeout_s:g} s")
                for key, _ in ready:
                    parts[key.data] = _expect(self._links[key.data], kind, deadline, f"rank {key.data}")
        return [parts[rank] for rank in range(self.world_size)]

    def close(self, why: str | None = None) -> None:
        """Leave the group. With `why`, the peers are told: they fail with those words instead of waiting."""
        _close(self._links, why)
        self._links.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        match error:
            case None:
                self.close()
            case RendezvousError():  # says who failed already
                self.close(str(error))
            case _:
                self.close(f"rank {self.rank} has stopped: {error!s}")


def join(place: Place, *, timeout_s: float = JOIN_TIMEOUT_S, exchange_timeout_s: float = EXCHANGE_TIMEOUT_S) -> Group:
    """The group of all `place.world_size` processes, once all of them are there.

    Raises RendezvousError if they are not within `timeout_s`, or at once if rank 0 belongs to another run.
    """
    deadline = time.monotonic() + timeout_s
    if place.world_size == 1:
        links = {}
    elif place.rank == 0:
        links = _welcome_all(place, timeout_s, deadline)
    else:
        links = {0: _enter(place, timeout_s, deadline)}
    for link in links.values():
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each frame is waited for: never hold it back
    return Group(place, links, exchange_timeout_s)


# Rank 0's side of joining


def _welcome_all(place: Place, timeout_s: float, deadline: float) -> dict[int, socket.socket]:
    """The connections of all the other ranks. They are welcomed together, when the last has come."""
    door = _Door(place, deadline)
    try:
        door.admit_all(timeout_s)
        for rank in range(1, place.world_size):
            _send(door.links[rank], WELCOME, b"", deadline)
    except (OSError, RendezvousError) as error:
        _close(door.links, str(error))
        raise RendezvousError(str(error)) from error
    return door.links


class _Door:
    """Lets in one connection for each rank but 0; strangers are refused and forgotten."""

    def __init__(self, place: Place, deadline: float) -> None:
        self.links: dict[int, socket.socket] = {}
        self._place = place
        self._deadline = deadline

    def admit_all(self, timeout_s: float) -> None:
        with _listener(self._place) as listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ, 0)  # the data is the rank at the other end, once known
            try:
                while len(self.links) < self._place.world_size - 1:
                    ready = selector.select(max(0.0, self._deadline - time.monotonic()))
                    if not ready:
                        missing = _numbers(set(range(1, self._place.world_size)) - set(self.links))
                        raise RendezvousError(f"rank {missing} did not come within {timeout_s:g} s")
                    for key, _ in ready:
                        assert isinstance(key.fileobj, socket.socket)
                        self._hear(selector, key.fileobj, key.data)
            finally:
                for key in selector.get_map().values():
                    if key.data is None and isinstance(key.fileobj, socket.socket):
                        key.fileobj.close()

    def _hear(self, selector: selectors.BaseSelector, source: socket.socket, source_rank: int | None) -> None:
        """Deals with one socket that has something to say: the listener, a caller, or a peer that has joined."""
        if source_rank == 0:
            selector.register(source.accept()[0], selectors.EVENT_READ, None)
        elif source_rank is not None:  # a peer is silent until it is welcome: this one is gone, or tells why it goes
            _expect(source, WELCOME, self._deadline, f"rank {source_rank}")
        elif (rank := self._greeted_by(source)) is not None:
            selector.modify(source, selectors.EVENT_READ, rank)
            self.links[rank] = source
        else:
            selector.unregister(source)
            source.close()

    def _greeted_by(self, caller: socket.socket) -> int | None:
        """The rank of the caller; None if it is none of ours, and then it has been told why."""
        soon = time.monotonic() + GREETING_TIMEOUT_S
        try:
            kind, payload = _receive(caller, soon)
            verdict = judge(payload, self._place, self.links) if kind == GREETING else "that was no greeting"
            if isinstance(verdict, int):
                return verdict
            _send(caller, FAILURE, f"rank 0 refused us: {verdict}".encode(), soon)
        except OSError:
            pass  # it hung up, fell silent or speaks something else: no peer of ours
        return None


def _listener(place: Place) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=place.world_size)
    except OSError as error:
        raise RendezvousError(f"rank 0 cannot listen at {place.address}:{place.port}: {error}") from error


def judge(greeting: bytes, place: Place, joined: Collection[int]) -> int | str:
    """The caller's rank, if the greeting is that of a peer still awaited; otherwise why not."""
    try:
        hello = json.loads(greeting)
        protocol, run_id, rank, world_size = (hello[key] for key in ("protocol", "run", "rank", "world_size"))
    except (ValueError, KeyError, TypeError):
        return "that was no greeting"
    if protocol != PROTOCOL:
        return f"it speaks {PROTOCOL}, not {protocol}"
    if run_id != place.run_id:
        return f"it belongs to run {place.run_id}, not to run {run_id}"
    if world_size != place.world_size:
        return f"it expects {place.world_size} processes, not {world_size}"
    if not isinstance(rank, int) or not 0 < rank < place.world_size:
        return f"there is no rank {rank} to join it"
    if rank in joined:
        return f"rank {rank} has joined already"
    return rank


# The other ranks' side of joining


def _enter(place: Place, timeout_s: float, deadline: float) -> socket.socket:
    """A connection to rank 0 over which the welcome has come."""
    link = _connect(place, timeout_s, deadline)
    greeting = {"protocol": PROTOCOL, "run": place.run_id, "rank": place.rank, "world_size": place.world_size}
    try:
        with contextlib.suppress(OSError):  # as in _exchange: the answer explains more
            _send(link, GREETING, json.dumps(greeting).encode(), deadline)
        _expect(link, WELCOME, deadline, "rank 0")
    except RendezvousError:
        link.close()
        raise
    return link


def _connect(place: Place, timeout_s: float, deadline: float) -> socket.socket:
    last: OSError | None = None
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            link = socket.create_connection((place.address, place.port), timeout=left_s)
        except OSError as error:
            last = error
        else:
            # A caller whose own port happens to be the one it calls reaches itself (TCP's simultaneous open).
            if link.getsockname() != link.getpeername():
                return link
            link.close()
        time.sleep(RETRY_S)  # a port that nobody listens at yet gives no event to await
    raise RendezvousError(
        f"rank 0 did not answer at {place.address}:{place.port} within {timeout_s:g} s: {last}"
    ) from last


# Frames


def _close(links: dict[int, socket.socket], why: str | None) -> None:
    for link in links.values():
        if why is not None:
            with contextlib.suppress(OSError):
                _send(link, FAILURE, why.encode(), time.monotonic() + GREETING_TIMEOUT_S)
        link.close()


def _send(link: socket.socket, kind: bytes, payload: bytes, deadline: float) -> None:
    """Raises OSError if the peer is gone or does not take it in time."""
    link.settimeout(_left_s(deadline))
    link.sendall(HEADER.pack(kind, len(payload)) + payload)


def _receive(link: socket.socket, deadline: float) -> tuple[bytes, bytes]:
    """The next frame. Raises OSError if the peer is gone, too slow, or speaks something else."""
    kind, length = HEADER.unpack(_receive_exactly(link, HEADER.size, deadline))
    if length > FRAME_BYTES_MAX:
        raise ConnectionError("not a frame")
    return kind, _receive_exactly(link, length, deadline)


def _receive_exactly(link: socket.socket, count: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        link.settimeout(_left_s(deadline))
        piece = link.recv(count - len(received))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)


def _expect(link: socket.socket, kind: bytes, deadline: float, peer: str) -> bytes:
    """The payload of the next frame, which must be of this kind. Raises RendezvousError; it names the peer."""
    try:
        received, payload = _receive(link, deadline)
    except TimeoutError as error:
        raise RendezvousError(f"nothing from {peer} in time") from error
    except OSError as error:
        raise RendezvousError(f"{peer} has gone: {error}") from error
    if received == FAILURE:
        raise RendezvousError(payload.decode(errors="replace"))
    if received != kind:
        raise RendezvousError(f"{peer} has lost step: it sent {received!r} where {kind!r} was due")
    return payload


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _numbers(ranks: set[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks))
