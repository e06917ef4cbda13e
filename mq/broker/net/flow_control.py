"""How much memory answers take that clients do not read, over all clients.

What the kernel does not take any more waits in the broker. From half of what is allowed on, clients with much of it are
not read either, so that they ask for nothing more until they have read some. Beyond all of it, those with the most are
dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

MUCH_BYTES: Final = 256 * 1024
"""A client with so many bytes of answers waiting is looked at with each further one."""


class Reading(Hashable, Protocol):
    """A connection as far as unread answers are concerned."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of answers that wait to be sent."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether this is a replica, which is never kept waiting or dropped for the sake of clients."""
        ...

    def close(self, reason: str, /) -> None: ...

    def wait_for_reader(self, waits: bool, /) -> None:
        """Read no more requests of it, or read them again."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Reading)


class UnreadReplies(Generic[ConnectionT]):
    """What clients have not read.

    Args:
        bytes_max: that may wait for all clients together.
        unsent: how many bytes do.
        connections: all there are.
        on_dropped: told which connection is about to be closed.
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
        self._dropping = False

    @property
    def kept_waiting(self) -> int:
        """How many clients are not read, until they have read answers."""
        return len(self._kept_waiting)

    def grown(self, connection: ConnectionT) -> None:
        """A connection has more than `MUCH_BYTES` of answers waiting."""
        nbytes = self._unsent()
        if nbytes > self.bytes_max:
            self.drop_some()
        elif nbytes > self.bytes_max // 2 and connection not in self._kept_waiting and not connection.trusted:
            self._kept_waiting[connection] = None
            connection.wait_for_reader(True)

    def drop_some(self) -> None:
        """Drop the clients with the most unread answers until there is an eighth of the room again.

        Those who have read everything stay, also when replicas alone have too much waiting.
        """
        if self._dropping:
            return  # others were told that a client is gone, and that is more than they read: their turn comes
        self._dropping = True
        enough = self.bytes_max // 8 * 7
        for connection in sorted(self._connections(), key=_waiting_bytes, reverse=True):
            if self._unsent() <= enough or not connection.waiting_bytes:
                break
            if not connection.trusted:
                self._on_dropped(connection)
                connection.close("too slow")
        self._dropping = False

    def look(self) -> None:
        """Read again the requests of those who have read their answers; to be called several times a second."""
        for connection in list(self._kept_waiting):
            if connection.waiting_bytes < MUCH_BYTES // 2:
                self._kept_waiting.pop(connection, None)
                connection.wait_for_reader(False)

    def forget(self, connection: ConnectionT) -> None:
        """A connection is gone."""
        self._kept_waiting.pop(connection, None)


def _waiting_bytes(connection: Reading) -> int:
    return connection.waiting_bytes
