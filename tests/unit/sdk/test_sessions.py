"""How long a program waits for a controller that is away, and what it says of that."""

import socket
import threading

import pytest

from moorings.core.model.errors import MooringsError
from moorings.sdk.sessions import in_session


def ask(environment, patience_s, **flags):
    with pytest.raises(MooringsError) as caught:
        in_session(environment, lambda session: session.client.get_run("run-a"), patience_s, **flags)
    return caught.value.detail


@pytest.fixture
def lossy(tmp_path):
    """Variables of a server that loses every connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def lose():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(1)
                connection.close()

        thread = threading.Thread(target=lose)
        thread.start()
        yield {"HOME": str(tmp_path), "MOORINGS_SERVER": f"http://127.0.0.1:{server.getsockname()[1]}"}
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_controller_that_was_reached_is_waited_for_with_one_warning(lossy, caplog):
    assert "was lost" in ask(lossy, 1.0, fails_unreached=True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("; trying again for up to 0:01")


def test_one_that_was_never_reached_is_waited_for_only_where_it_is_known(tmp_path, caplog):
    away = {"HOME": str(tmp_path), "MOORINGS_SERVER": "http://127.0.0.1:9"}
    assert ask(away, 1.0, fails_unreached=True) == "nothing listens at http://127.0.0.1:9"
    assert caplog.messages == []
    ask(away, 1.0)
    assert caplog.messages == ["nothing listens at http://127.0.0.1:9; trying again for up to 0:01"]
