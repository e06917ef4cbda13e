"""Keeps connections open between polls, which come every tenth of a second."""

from __future__ import annotations

from collections.abc import Callable

from spark.client import BrokerResponse, Connection, Unreachable


class KeptConnections:
    """Creates one connection for each address, and returns it for every call until `close`.

    Closing one of them leaves it open. A failed one is replaced.
    """

    def __init__(self, connect: Callable[[str, float], Connection] = Connection) -> None:
        self._connect = connect
        self._open: dict[str, Connection] = {}

    def __call__(self, address: str, timeout: float) -> Connection:
        """The connection to an address; ``timeout`` seconds are for opening a new one. Raises Unreachable."""
        connection = self._open.get(address)
        if connection is None:
            connection = self._open[address] = self._connect(address, timeout)
        return _Lent(connection, self._on_failure)

    def close(self) -> None:
        """Close the kept connections."""
        while self._open:
            self._open.popitem()[1].close()

    def _on_failure(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        connection.close()


class _Lent(Connection):
    """A connection that `KeptConnections` closes, not its user."""

    def __init__(self, lender: Connection, on_failure: Callable[[Connection], None]) -> None:
        self.address = lender.address
        self._lender = lender
        self._on_failure = on_failure

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        try:
            return self._lender.send(code, ext, body)
        except Unreachable:
            self._on_failure(self._lender)
            raise

    def receive(self, opaque: int) -> BrokerResponse:
        try:
            return self._lender.receive(opaque)
        except Unreachable:
            self._on_failure(self._lender)
            raise

    def close(self) -> None:
        """Do nothing: the connection stays open."""
