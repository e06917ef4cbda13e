"""Who is kept waiting and who is dropped while answers are not read."""

from __future__ import annotations

from mq.broker.net.flow_control import MUCH_BYTES, UnreadReplies

MIB = 1024 * 1024


class Connection:
    def __init__(self, waiting_bytes: int = 0, *, trusted: bool = False) -> None:
        self.waiting_bytes = waiting_bytes
        self.trusted = trusted
        self.closed = False
        self.waits = False

    def close(self, reason: str) -> None:
        self.closed = True
        self.waiting_bytes = 0

    def wait_for_reader(self, waits: bool) -> None:
        self.waits = waits


def unread(*connections: Connection) -> UnreadReplies[Connection]:
    return UnreadReplies(
        bytes_max=8 * MIB,
        unsent=lambda: sum(each.waiting_bytes for each in connections),
        connections=lambda: connections,
        on_dropped=lambda connection: None,
    )


def test_few_unread_bytes_do_not_block_a_connection() -> None:
    one, other = Connection(3 * MIB), Connection(MIB)
    kept = unread(one, other)
    kept.add(one)
    assert [one.waits, one.closed] == [False, False]


def test_client_over_half_its_limit_waits_until_it_has_read() -> None:
    one, other = Connection(3 * MIB), Connection(2 * MIB)
    kept = unread(one, other)
    kept.add(other)
    assert [one.waits, other.waits, kept.kept_waiting] == [False, True, 1]
    other.waiting_bytes = MUCH_BYTES // 2
    kept.resume_readers()
    assert other.waits
    other.waiting_bytes -= 1
    kept.resume_readers()
    assert [other.waits, kept.kept_waiting] == [False, 0]


def test_clients_with_the_most_unread_bytes_are_dropped_at_the_limit() -> None:
    clients = [Connection(3 * MIB), Connection(4 * MIB), Connection(MIB), Connection(3 * MIB)]
    replica = Connection(5 * MIB // 4, trusted=True)
    kept = unread(*clients, replica)
    kept.add(clients[2])
    assert [each.closed for each in clients] == [True, True, False, False]
    assert not replica.closed


def test_replica_is_never_kept_waiting() -> None:
    replica = Connection(6 * MIB, trusted=True)
    unread(replica).add(replica)
    assert not replica.waits


def test_client_that_read_everything_is_not_dropped_for_slow_replicas() -> None:
    reader, replica = Connection(), Connection(9 * MIB, trusted=True)
    unread(reader, replica).drop_some()
    assert not reader.closed


def test_drop_notices_do_not_recurse() -> None:
    class Member(Connection):
        """One of a group, of which another one hears that it is gone, and has not read that either."""

        def close(self, reason: str) -> None:
            super().close(reason)
            kept.add(next(other for other in members if not other.closed))

    members = [Member(MUCH_BYTES) for _ in range(600)]
    kept = unread(*members)
    kept.drop_some()
    assert sum(each.waiting_bytes for each in members) == 7 * MIB


def test_disconnected_client_is_removed() -> None:
    one = Connection(6 * MIB)
    kept = unread(one)
    kept.add(one)
    kept.forget(one)
    assert kept.kept_waiting == 0
