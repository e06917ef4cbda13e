"""Outcomes of messages and commands that were appended to the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.monitoring.error_answers import ERROR_ANSWERS
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import PhysicalOffset, QueueOffset


class Stored(NamedTuple):
    """Committed on a majority of disks and applied here, at this place. For commands, the queue offset is 0."""

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Not stored, and will not be, because the disk is full."""

    remark: str
    """The text for the client."""


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """Not stored, and will not be: this replica lost leadership before the entry was in the log."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Perhaps stored: this replica lost leadership while the entry was in flight."""


Outcome = Stored | DiskFull | LeadershipLost | Unknown
OnOutcome = Callable[[Outcome], None]


def answer_outcome(call: Call[object], what: str, reply: Callable[[Stored], bytes], outcome: Outcome) -> None:
    """Answer a request with the outcome of its message or command.

    ``reply`` builds the answer if it is stored. After a loss of leadership, the current leader serves the request. For
    an unknown outcome, the connection is closed: that is the only answer on the wire that promises nothing. ``what`` is
    for logs, as in "a message was being stored".
    """
    match outcome:
        case Stored():
            call.answer(reply(outcome))
        case DiskFull(remark):
            call.refuse(RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark))
        case LeadershipLost():
            call.dispatch()
        case Unknown():
            call.connection.close(f"leadership was lost while {what}")


def give_back(call: Call[Any], outcome: DiskFull | LeadershipLost) -> None:
    """Refuse a request that was not stored, or serve it again, so that the new leader gets it."""
    if isinstance(outcome, DiskFull):
        ERROR_ANSWERS.refused += 1
        call.answer(call.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=outcome.remark))
    else:
        call.dispatch()
