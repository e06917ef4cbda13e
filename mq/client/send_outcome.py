"""What an answer to a send means: pure.

Two questions decide what a producer does next: may the message have been stored, and is another attempt sensible?
Source: SendMessageProcessor for the codes, DefaultMQProducerImpl for those worth another queue.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from mq.protocol.codes import ResponseCode

__all__ = ["Retry", "Verdict", "judge_answer"]


class Retry(Enum):
    """Whether the same message may be tried again."""

    NEVER = "never"
    """The next broker would say the same: the message or the sender is at fault."""
    ELSEWHERE = "elsewhere"
    """Another broker group may know better, this one will not: each group once, a bounded number of times in all."""
    COUNTED = "counted"
    """Anybody may know better next time, but this is no matter of waiting: a bounded number of times."""
    UNTIL_TIMEOUT = "until timeout"
    """Nobody can serve the queue at this moment, an election for example: as long as the caller has time."""


class Verdict(NamedTuple):
    """`stored` is what is known after this answer alone."""

    stored: Literal["yes", "no", "unknown"]
    retry: Retry


STORED = Verdict("yes", Retry.NEVER)
REFUSED = Verdict("no", Retry.NEVER)
REFUSED_HERE = Verdict("no", Retry.ELSEWHERE)
UNKNOWN_HERE = Verdict("no", Retry.COUNTED)
NOT_NOW = Verdict("no", Retry.UNTIL_TIMEOUT)
VAGUE = Verdict("unknown", Retry.COUNTED)

_VERDICTS: dict[int, Verdict] = {
    ResponseCode.SUCCESS: STORED,
    ResponseCode.FLUSH_DISK_TIMEOUT: STORED,
    ResponseCode.SLAVE_NOT_AVAILABLE: STORED,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: STORED,
    ResponseCode.SERVICE_NOT_AVAILABLE: NOT_NOW,
    ResponseCode.FLOW_CONTROL: NOT_NOW,
    ResponseCode.NOT_LEADER_FOR_QUEUE: NOT_NOW,
    ResponseCode.GO_AWAY: NOT_NOW,
    ResponseCode.TOPIC_NOT_EXIST: UNKNOWN_HERE,  # it may be about to be created
    ResponseCode.NO_PERMISSION: REFUSED_HERE,
    ResponseCode.NO_BUYER_ID: REFUSED_HERE,
    ResponseCode.NOT_IN_CURRENT_UNIT: REFUSED_HERE,
    # "An exception in the processor" says nothing about how far the processor had come.
    ResponseCode.SYSTEM_ERROR: VAGUE,
}

# SYSTEM_BUSY means two things. With these remarks the request never reached the store; without them it may be
# DLedger's answer to an append that timed out waiting for its quorum, and such an entry can still commit.
_BUSY_BEFORE_STORE = ("[REJECTREQUEST]", "[OVERLOAD]", "[TIMEOUT_CLEAN_QUEUE]")


def judge_answer(code: int, remark: str | None) -> Verdict:
    """What a broker's answer `code` with `remark` to a send means. Unlisted codes are refusals for good."""
    if code == ResponseCode.SYSTEM_BUSY:
        return NOT_NOW if (remark or "").startswith(_BUSY_BEFORE_STORE) else VAGUE
    return _VERDICTS.get(code, REFUSED)
