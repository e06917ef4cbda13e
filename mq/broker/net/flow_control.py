"""Limits the memory of unread responses of all clients together.

Replies that the kernel does not accept wait in the broker. Above half of the limit, the broker stops reading requests
of clients with many unread replies until they have read some. Above the limit, it drops the clients with the most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

MUCH_BYTES: Final = 256 * 1024
"""A client with this many bytes of unread replies is checked with each further one."""


class ReplyReader(Hashable, Protocol):
    """The part of a connection that `UnreadReplies` needs."""

    @property
    def waiting_bytes(self) -> int:
        """The bytes of responses that wait to be sent."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether this is a replica. Replicas are never paused or dropped because of clients."""
        ...

    def close(self, reason: str, /) -> None: ...

    def wait_for_reader(self, waits: bool, /) -> None:
        """Stop reading requests of the client, or resume."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=ReplyReader)


class UnreadReplies(Generic[ConnectionT]):
    """Limits the bytes of unread responses of all clients: pauses clients, and drops the slowest ones.

    Args:
        bytes_max: limit for all clients together.
        unsent: current number of bytes.
        connections: all connections.
        on_dropped: called with a connection before it is closed.
    """

    def __init__(
        self,
        *,
        bytes_max: int,
        unsent: Callable[[], int],
        connections: Callable[[], Iterable[ConnectionT]],
        on_dropped: Callable[[ConnectionT], None],
    ) -> None:
        self.bytes_max = bytes_max
        self._unsent = unsent
        self._connections = connections
        self._on_dropped = on_dropped
        self._kept_waiting: dict[ConnectionT, None] = {}
        self._is_dropping = False

    @property
    def kept_waiting(self) -> int:
        """The number of clients that are paused until they have read responses."""
        return len(self._kept_waiting)

    def add(self, connection: ConnectionT) -> None:
        """Drop clients if unread responses exceed the limit. Above half of it, pause this client until it has read."""
        unread_bytes = connection.waiting_bytes
        assert unread_bytes >= MUCH_BYTES, f"{unread_bytes} bytes of replies wait, which is less than {MUCH_BYTES}"
        nbytes = self._unsent()
        if nbytes > self.bytes_max:
            self.drop_some()
        elif nbytes > self.bytes_max // 2 and connection not in self._kept_waiting and not connection.trusted:
            self._kept_waiting[connection] = None
            connection.wait_for_reader(True)

    def drop_some(self) -> None:
        """Drop the clients with the most unread responses until an eighth of the limit is free.

        Clients without unread replies stay, even if replicas alone exceed the limit.
        """
        if self._is_dropping:
            return  # closing a connection made others grow by notices; they are handled by a later call
        self._is_dropping = True
        enough = self.bytes_max // 8 * 7
        for connection in sorted(self._connections(), key=_waiting_bytes, reverse=True):
            if self._unsent() <= enough or not connection.waiting_bytes:
                break
            if not connection.trusted:
                self._on_dropped(connection)
                connection.close("too slow")
        self._is_dropping = False

    def resume_readers(self) -> None:
        """Resume clients that have read their responses. Call it several times a second."""
        for connection in list(self._kept_waiting):
            if connection.waiting_bytes < MUCH_BYTES // 2:
                self._kept_waiting.pop(connection, None)
                connection.wait_for_reader(False)

    def check_invariants(self) -> None:
        """Assert that clients can be dropped and resumed, for tests."""
        assert not self._is_dropping, f"clients are being dropped, with {self._unsent()} unread bytes"
        lost_clients = self._kept_waiting.keys() - set(self._connections())
        assert not lost_clients, (
            f"{len(lost_clients)} of {len(self._kept_waiting)} clients that are to read replies first are gone"
        )

    def forget(self, connection: ConnectionT) -> None:
        """Forget a closed connection."""
        self._kept_waiting.pop(connection, None)


def _waiting_bytes(connection: ReplyReader) -> int:
    return connection.waiting_bytes
