"""Messages with sequence numbers."""

from __future__ import annotations

from mq.protocol.codes import ResponseCode
from tests.support.running_broker import Answer, properties


def numbered(number: object, producer: str = "p1", **given: str) -> str:
    return properties(RAFTMQ_PRODUCER=producer, RAFTMQ_SEQUENCE=str(number), **given)


def place(answer: Answer) -> dict[str, str]:
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.ext
