"""Controllers that start at the same moment on a new database, each in a process of its own.

A module of its own, since such a process imports by name what it is to do. Refused: a test in the suite that is
shipped. How many processes a database bears is known to its own tests.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from moorings.ports.store import Epoch
from moorings.testing.builders import NOW
from moorings.testing.store_lists import OpenStore
from tests.waiting import patient

PATIENCE_S = patient(60)


def lead_and_leave(open_store: OpenStore, holder: str) -> tuple[str, Epoch]:
    """The installation and the epoch of a controller that leads and goes."""
    store = open_store()
    epoch = store.begin_epoch(holder, NOW)
    identity = store.installation()
    store.close()
    return identity, epoch


def assert_one_makes_the_database(open_store: OpenStore, *, n_controllers: int, n_processes: int) -> None:
    """All find one installation, and each leads in its turn; ``open_store`` must survive pickling."""
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as processes:
        opened = [processes.submit(lead_and_leave, open_store, f"c{number}") for number in range(n_controllers)]
        results = [future.result(PATIENCE_S) for future in opened]
    assert len({identity for identity, _ in results}) == 1, results
    assert sorted(epoch for _, epoch in results) == list(range(1, n_controllers + 1)), results
