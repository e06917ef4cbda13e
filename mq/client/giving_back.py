"""Giving a message back to its broker: the group gets it again later, or it ends among the group's dead letters."""

from __future__ import annotations

from mq.client.errors import ClientError
from mq.client.logs import log
from mq.client.message import ReceivedMessage
from mq.client.offsets import leader_of
from mq.client.remoting import Remoting
from mq.protocol.codes import RequestCode

__all__ = ["give_back"]


async def give_back(
    remoting: Remoting, group: str, message: ReceivedMessage, *, max_reconsume_times: int | None
) -> bool:
    """Whether the broker has taken `message` back. If not, it may have all the same.

    How long it waits grows with each time. `max_reconsume_times` None leaves to the group's configuration how often.
    """
    ext = {
        "offset": str(message.record.physical_offset),
        "group": group,
        "delayLevel": "0",
        "originMsgId": message.offset_message_id,
        "originTopic": message.topic,
        "unitMode": "false",
    }
    if max_reconsume_times is not None:
        ext["maxReconsumeTimes"] = str(max_reconsume_times)
    try:
        await remoting.call(leader_of(remoting, message.queue), RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    except ClientError as error:
        log.warning("message_not_taken_back", message=message, reason=str(error))
        return False
    return True
