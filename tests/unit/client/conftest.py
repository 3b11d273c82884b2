from collections.abc import Iterator

import pytest

from tests.unit.client.recorded import RecordedServer, recorded


@pytest.fixture
def server() -> Iterator[RecordedServer]:
    with recorded() as running:
        yield running
