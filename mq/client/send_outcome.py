"""Interprets brokers' answers to sends. Pure.

It answers two questions for the producer: may the message be stored, and is another attempt useful? Source:
SendMessageProcessor for the codes, DefaultMQProducerImpl for those that it retries at another queue.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from mq.protocol.codes import ResponseCode


class Retry(Enum):
    """Whether, and where, the same message may be sent again."""

    NEVER = "never"
    """Never send again: no broker would accept the message; it or the sender is at fault."""
    ELSEWHERE = "elsewhere"
    """Another broker group may accept it, this one will not: each group once, a limited number of times in total."""
    COUNTED = "counted"
    """Any broker may accept it next time, without waiting: a limited number of times."""
    UNTIL_TIMEOUT = "until timeout"
    """Send again until the caller's timeout: no broker can serve the queue now, as during an election."""


class StoreCertainty(NamedTuple):
    """Whether a message is stored, as far as one answer tells."""

    stored: Literal["yes", "no", "unknown"]
    retry: Retry


STORED = StoreCertainty("yes", Retry.NEVER)
REFUSED = StoreCertainty("no", Retry.NEVER)
REFUSED_HERE = StoreCertainty("no", Retry.ELSEWHERE)
UNKNOWN_HERE = StoreCertainty("no", Retry.COUNTED)
NOT_NOW = StoreCertainty("no", Retry.UNTIL_TIMEOUT)
VAGUE = StoreCertainty("unknown", Retry.COUNTED)

_VERDICTS: dict[int, StoreCertainty] = {
    ResponseCode.SUCCESS: STORED,
    ResponseCode.FLUSH_DISK_TIMEOUT: STORED,
    ResponseCode.SLAVE_NOT_AVAILABLE: STORED,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: STORED,
    ResponseCode.SERVICE_NOT_AVAILABLE: NOT_NOW,
    ResponseCode.FLOW_CONTROL: NOT_NOW,
    ResponseCode.NOT_LEADER_FOR_QUEUE: NOT_NOW,
    ResponseCode.GO_AWAY: NOT_NOW,
    ResponseCode.TOPIC_NOT_EXIST: UNKNOWN_HERE,  # it may be created soon
    ResponseCode.NO_PERMISSION: REFUSED_HERE,
    ResponseCode.NO_BUYER_ID: REFUSED_HERE,
    ResponseCode.NOT_IN_CURRENT_UNIT: REFUSED_HERE,
    # "An exception in the processor" does not tell how far the processor had come.
    ResponseCode.SYSTEM_ERROR: VAGUE,
}

# SYSTEM_BUSY has two meanings. With these remarks the request never reached the store; without them it may be DLedger's
# answer to an append that timed out waiting for its quorum, and such an entry can still commit.
_BUSY_BEFORE_STORE = ("[REJECTREQUEST]", "[OVERLOAD]", "[TIMEOUT_CLEAN_QUEUE]")


def judge_send(code: int, remark: str | None) -> StoreCertainty:
    """Interpret a broker's `code` and `remark` in the answer to a send. Unlisted codes are permanent refusals."""
    if code == ResponseCode.SYSTEM_BUSY:
        return NOT_NOW if (remark or "").startswith(_BUSY_BEFORE_STORE) else VAGUE
    return _VERDICTS.get(code, REFUSED)
