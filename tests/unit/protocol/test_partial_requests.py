"""Which unfinished requests may go on, and who is dropped."""

from __future__ import annotations

from mq.protocol.incoming.partial_requests import SLOW_BYTES, WAITING_BYTES, PartialRequests

MIB = 1024 * 1024


class Connection:
    def __init__(self) -> None:
        self.unfinished_bytes = 0
        self.closed = False
        self.reads = True

    def close(self, reason: str) -> None:
        self.closed = True

    def on_admit(self) -> None:
        self.reads = True


class Receiver:
    """Partial requests, and why it dropped connections."""

    def __init__(self, bytes_max: int = 4 * MIB, seconds_max: float = 30.0) -> None:
        self.reasons: list[str] = []
        self.partial_requests: PartialRequests[Connection] = PartialRequests(
            bytes_max=bytes_max, seconds_max=seconds_max, on_closed=lambda _, reason: self.reasons.append(reason)
        )

    def begin(self, nbytes: int) -> Connection:
        connection = Connection()
        connection.reads = self.partial_requests.begin(connection, nbytes)
        return connection


def test_requests_within_the_room_continue() -> None:
    receiver = Receiver()
    first, second = receiver.begin(3 * MIB), receiver.begin(MIB)
    assert first.reads
    assert second.reads
    assert receiver.partial_requests.nbytes == 4 * MIB
    receiver.partial_requests.on_frame_end(first)
    assert receiver.partial_requests.nbytes == MIB
    receiver.partial_requests.on_frame_end(first)
    assert receiver.partial_requests.nbytes == MIB


def test_shortest_waiting_request_is_read_first() -> None:
    receiver = Receiver()
    first = receiver.begin(4 * MIB)
    long, short, gone = receiver.begin(3 * MIB), receiver.begin(2 * MIB), receiver.begin(MIB)
    assert [each.reads for each in (long, short, gone)] == [False, False, False]
    receiver.partial_requests.on_frame_end(gone)
    receiver.partial_requests.on_frame_end(first)
    assert [each.reads for each in (long, short, gone)] == [False, True, False]
    assert (receiver.partial_requests.nbytes, receiver.partial_requests.waiting_count) == (2 * MIB, 1)
    receiver.partial_requests.on_frame_end(short)
    assert long.reads


def test_request_larger_than_all_the_room_is_read_alone() -> None:
    receiver = Receiver(MIB)
    first, second = receiver.begin(2 * MIB), receiver.begin(2 * MIB)
    assert [first.reads, second.reads] == [True, False]
    receiver.partial_requests.on_frame_end(first)
    assert second.reads


def test_stalled_request_is_dropped_when_others_wait() -> None:
    receiver = Receiver()
    stopped = receiver.begin(4 * MIB)
    for now in range(10):
        receiver.partial_requests.close_stalled(now)
    closed_early = stopped.closed
    assert not closed_early
    waiting = receiver.begin(MIB)
    receiver.partial_requests.close_stalled(10)
    assert stopped.closed
    assert waiting.reads
    assert receiver.partial_requests.nbytes == MIB
    assert receiver.reasons == ["of its request of 4194304 bytes only 0 have arrived"]


def test_request_arriving_quickly_enough_is_not_closed() -> None:
    receiver = Receiver()
    quick = receiver.begin(4 * MIB)
    receiver.begin(MIB)
    for now in range(20):
        quick.unfinished_bytes += SLOW_BYTES
        receiver.partial_requests.close_stalled(now)
    assert not quick.closed
    quick.unfinished_bytes += SLOW_BYTES - 1
    receiver.partial_requests.close_stalled(20)
    quick.unfinished_bytes += SLOW_BYTES - 1
    receiver.partial_requests.close_stalled(21)
    assert quick.closed


def test_only_silent_requests_are_closed_if_room_is_left() -> None:
    receiver = Receiver(seconds_max=30)
    drips, stopped = receiver.begin(MIB), receiver.begin(MIB)
    for now in range(31):
        drips.unfinished_bytes += 1
        receiver.partial_requests.close_stalled(now)
        assert stopped.closed is (now == 30)
    assert not drips.closed
    assert receiver.partial_requests.nbytes == MIB


def test_late_check_does_not_close_a_request_that_was_just_admitted() -> None:
    """On a busy machine, one check may come when both are over: the slow one, and the patience of who waits for it."""
    receiver = Receiver(seconds_max=3)
    slow = receiver.begin(4 * MIB)
    waiting = receiver.begin(MIB)
    slow.unfinished_bytes += SLOW_BYTES
    for now in (1.0, 2.0, 4.5):
        receiver.partial_requests.close_stalled(now)
    assert [slow.closed, waiting.closed] == [True, False]
    assert waiting.reads


def test_request_admitted_between_two_checks_has_one_more() -> None:
    """What it sent in the moment before the first one says nothing."""
    receiver = Receiver()
    slow = receiver.begin(4 * MIB)
    receiver.begin(MIB)
    for now in (0.0, 1.0):
        receiver.partial_requests.close_stalled(now)
    closed_early = slow.closed
    assert not closed_early
    receiver.partial_requests.close_stalled(2.0)
    assert slow.closed


def test_stalled_partial_requests_are_closed() -> None:
    receiver = Receiver(seconds_max=30)
    going = receiver.begin(4 * MIB)
    waiting = receiver.begin(MIB)
    for now in range(31):
        going.unfinished_bytes += SLOW_BYTES
        receiver.partial_requests.close_stalled(now)
    assert [going.closed, waiting.closed] == [False, True]
    assert receiver.partial_requests.waiting_count == 0


def test_waiting_requests_and_their_memory_are_bounded() -> None:
    receiver = Receiver(4 * MIB)
    receiver.begin(4 * MIB)
    room = 4 * MIB // WAITING_BYTES
    waiting = [receiver.begin(MIB) for _ in range(room)]
    refused = receiver.begin(MIB)
    assert refused.closed
    assert receiver.partial_requests.waiting_count == room
    for _ in range(1000):
        receiver.partial_requests.on_frame_end(waiting.pop(0))
        waiting.append(receiver.begin(MIB))
    assert len(receiver.partial_requests._shortest) <= 2 * room + 65
