"""What became of a message or a command that was to enter the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.protocol.codes import ResponseCode


class Stored(NamedTuple):
    """It is committed, on a majority of disks, and applied here. Where it is; commands have no queue offset but 0."""

    queue_offset: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """It was not stored and will not be, because the disk is full."""

    remark: str
    """For the client."""


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """It was not stored and will not be: this replica ceased to lead before an entry with it was in the log."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Leadership was lost with the entry under way: it may be stored or not."""


Outcome = Stored | Refused | LeadershipLost | Unknown
OnOutcome = Callable[[Outcome], None]


def answer_outcome(call: Call[object], what: str, reply: Callable[[Stored], bytes], outcome: Outcome) -> None:
    """Answer a request with what became of its message or command.

    ``reply`` makes the answer if it is stored. What another replica is to store is served there.
    When nobody knows, the connection is closed: on the wire that is the one answer which promises nothing. ``what`` is
    for people, as in "a message was being stored".
    """
    match outcome:
        case Stored():
            call.answer(reply(outcome))
        case Refused(remark):
            call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
        case LeadershipLost():
            call.dispatch()
        case Unknown():
            call.connection.close(f"leadership was lost while {what}")
