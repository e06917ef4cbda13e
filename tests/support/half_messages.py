"""Half messages of transactions: sent, ended, and as stored."""

from __future__ import annotations

from typing import Any

from mq.protocol.codes import RequestCode
from mq.protocol.frames import JSON
from mq.protocol.message_ids import parse_offset_message_id
from tests.support.running_broker import Answer, Client, properties

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
PREPARED = 4


def half_text(**more: str) -> str:
    return properties(**({"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "0A0B"} | more))


async def send_half(client: Client, body: bytes = b"body", topic: str = "T", queue: int = 0, **more: str) -> Answer:
    answer = await client.send(topic, body, e=queue, f=PREPARED, i=half_text(**more))
    assert answer.code == 0, answer
    return answer


def end_ext(half: Answer, outcome: int, **given: Any) -> dict[str, Any]:
    """The fields of END_TRANSACTION for a half message, from the response to its send."""
    fields: dict[str, Any] = {
        "producerGroup": "P",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": parse_offset_message_id(half.ext["msgId"]).physical_offset,
        "commitOrRollback": outcome,
        "fromTransactionCheck": False,
        "msgId": half.ext["transactionId"],
        "transactionId": half.ext["transactionId"],
    }
    return fields | given


async def end(client: Client, half: Answer, outcome: int, *, serialization: int = JSON, **given: Any) -> Answer:
    ext = end_ext(half, outcome, **given)
    return await client.request(RequestCode.END_TRANSACTION, ext, serialization=serialization)
