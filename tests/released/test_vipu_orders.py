"""A driver of today goes on from ``orders.json`` of the release: nothing is ordered twice, nothing of ours is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.released.vipu_rest import FOLDER, STATES, as_order, come_back, put_back

RECORDINGS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def test_every_state_is_recorded() -> None:
    assert RECORDINGS.keys() == STATES.keys()


@pytest.mark.parametrize("name", RECORDINGS)
async def test_a_driver_goes_on_from_recorded_orders(name: str, tmp_path: Path) -> None:
    recording = RECORDINGS[name]
    rig = put_back(recording, tmp_path)
    again = recording["again"]
    did = await come_back(rig, again["verb"], as_order(again["order"]), list(map(as_order, recording["held"])))
    assert did == recording["did"]
