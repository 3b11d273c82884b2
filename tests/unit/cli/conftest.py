from collections.abc import Iterator

import pytest

from tests.unit.client.recorded import RecordedServer, recorded


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedServer]:
    """A recorded controller that ``moor`` is configured for."""
    with recorded() as running:
        monkeypatch.setenv("MOORINGS_SERVER", running.url)
        yield running
