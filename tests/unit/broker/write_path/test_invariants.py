"""`check_invariants` of the write path names whatever is broken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol.messages.records import encode_host
from mq.protocol.numbers import QueueOffset
from raftlog import Refusal
from tests.support.appender_rounds import lone_appender

HOST = encode_host("127.0.0.1", 10911)


class Log:
    """Takes every entry."""

    def __init__(self) -> None:
        self.entries = 0

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal:
        build(1000 * self.entries)
        self.entries += 1
        return self.entries


def busy() -> Appender:
    """Two rounds in flight, and a command that waits for the next one."""
    appender = lone_appender(
        Log(),
        entry_bytes_max=600,
        rounds_in_flight=2,
    )
    appender.open()
    for _ in range(2):
        appender.add_command(b"command")
        assert appender.start_round()
    appender.add_command(b"command")
    appender.check_invariants()
    return appender


BROKEN: dict[str, Callable[[Appender], object]] = {
    "1 items wait without a leader": lambda appender: setattr(appender, "is_open", False),
    "0 senders were counted, 1 wait": lambda appender: setattr(appender, "waiting_senders", 0),
    "10 bytes were counted": lambda appender: setattr(appender, "pending_bytes", 10),
    r"entries in flight: \[2, 1\]": lambda appender: appender._entries.reverse(),
    r"rounds in flight end with \[2, 1\]": lambda appender: appender._round_ends.reverse(),
    "3 of 2 rounds are in flight": lambda appender: appender._round_ends.append(3),
    r"rounds in flight end with \[1\], the entries are \[1, 2\]": lambda appender: appender._round_ends.pop(),
    r"rounds in flight end with \[1, 2\], the entries are \[\]": lambda appender: setattr(
        appender, "_entries", deque()
    ),
}


@pytest.mark.parametrize("named", BROKEN)
def test_inconsistent_appender_is_reported(named: str) -> None:
    appender = busy()
    BROKEN[named](appender)
    with pytest.raises(AssertionError, match=named):
        appender.check_invariants()


def test_appender_is_whole_when_everything_is_answered() -> None:
    appender = busy()
    appender.on_commit(2)
    appender.close()
    appender.check_invariants()
    assert appender.pending_bytes == 0


def test_invariant_names_an_offset_below_the_stored_end() -> None:
    offsets = QueueTails(Metadata(), lambda topic, queue_id: QueueOffset(5))
    tail = offsets.get("T", 0)
    offsets.check_invariants()
    tail.next_offset = QueueOffset(4)
    with pytest.raises(AssertionError, match="T/0: the next message gets 4, and 5 are stored"):
        offsets.check_invariants()
    offsets.reset("T")
    offsets.check_invariants()


def test_additions_outside_of_an_entry_are_reported() -> None:
    offsets = QueueTails(Metadata(), lambda topic, queue_id: QueueOffset(5))
    offsets.get("T", 0).run = [b""]
    with pytest.raises(AssertionError, match="T/0: 1 messages of an entry"):
        offsets.check_invariants()
