from collections.abc import Iterator

import pytest

from moorings.cli.main import main
from tests.unit.client.recorded import RecordedServer, recorded


@pytest.fixture
def moor(capsys):
    """Runs a command; (exit code, stdout, stderr)."""

    def call(*arguments):
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedServer]:
    """A recorded controller that ``moor`` is configured for."""
    with recorded() as running:
        monkeypatch.setenv("MOORINGS_SERVER", running.url)
        yield running
