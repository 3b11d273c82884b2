"""Runs first in every Python process of a fault test that has this folder on its PYTHONPATH.

A supervisor finds its orders in the environment of its own job (it is given none of the controller's), a client in the
file that ``FAULT_ORDERS`` names; anybody else has none. Part of the tests only.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

_MODULE = "moorings.local.supervisor"


def _orders_of_supervisor(folder: str) -> dict[str, object] | None:
    order = json.loads(Path(folder, "order.json").read_text("utf-8"))
    text = order["job"]["environment"].get("FAULT_ORDERS")
    return json.loads(text) if text else None


def _kill_points() -> Any:
    return importlib.import_module("kill_points")  # beside this file; most processes do not need it


def _begin() -> None:
    if _MODULE in sys.orig_argv:
        orders = _orders_of_supervisor(sys.orig_argv[sys.orig_argv.index(_MODULE) + 1])
        if orders is not None:
            kill_points = _kill_points()
            kill_points.watch_supervisor(kill_points.obey(orders))
    elif "FAULT_ORDERS" in os.environ:
        kill_points = _kill_points()
        orders = json.loads(Path(os.environ["FAULT_ORDERS"]).read_text("utf-8"))
        kill_points.watch_client(kill_points.obey(orders))


_begin()
