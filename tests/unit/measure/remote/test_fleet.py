"""Addresses at which no scheduler of Dask answers."""

import socket
import threading
from collections.abc import Iterator

import pytest

from retune.compiler.measure.remote import fleet


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket that listens, and little patience with it."""
    monkeypatch.setattr(fleet, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address_of(server: socket.socket) -> str:
    return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("greeting", "said"), [(b"SSH-2.0-OpenSSH_9.2\r\n", "another server answers there"), (b"", "says nothing")]
)
def test_another_server_is_not_taken_for_a_scheduler(greeting: bytes, said: str, listening: socket.socket) -> None:
    def greet() -> None:
        client, _ = listening.accept()
        client.sendall(greeting)
        client.recv(1)  # until the other side leaves
        client.close()

    greeter = threading.Thread(target=greet)
    greeter.start()
    with pytest.raises(ConnectionError, match=f"no scheduler of Dask answers at tcp://.*{said}"):
        fleet.require_scheduler(address_of(listening))
    greeter.join()


def test_a_port_where_nothing_listens_and_a_host_without_an_address(listening: socket.socket) -> None:
    address = address_of(listening)
    listening.close()
    with pytest.raises(ConnectionError, match="Connection refused"):
        fleet.require_scheduler(address)
    with pytest.raises(ConnectionError, match=r"no scheduler of Dask answers at tcp://no-host\.invalid:1"):
        fleet.require_scheduler("tcp://no-host.invalid:1")


def test_a_scheduler_answers() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        fleet.require_scheduler(cluster.scheduler_address)
