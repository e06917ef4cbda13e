"""Stores messages of clients in another form than they were sent, such as delayed messages."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.outcome import Stored
from mq.broker.write_path.pending import LiteTail, PendingGroup, PendingSend, SendRequest
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.hashes import tag_code
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.sequencing import SequenceRange


def check_sent_bytes(nbytes: int, number: int | None = None) -> None:
    """Raise RequestRefused if the properties of a sent message leave no room for those of a redelivery.

    ``nbytes`` includes properties that the broker adds; ``number`` is the place of the message in a batch.
    """
    if nbytes > props.SENT_PROPERTIES_BYTES_MAX:
        which = "" if number is None else f"message {number} has "
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{which}properties of {nbytes} bytes; maximum: {props.SENT_PROPERTIES_BYTES_MAX}, so that a redelivery "
            "has room for more",
        )


class InternalMessages:
    """Stores messages of clients in other queues or with other properties than they were sent."""

    def __init__(
        self,
        *,
        appender: Appender,
        unique_keys: UniqKeyGenerator,
        cluster: str,
        body_bytes_max: int,
    ) -> None:
        self._appender = appender
        self._unique_keys = unique_keys
        self._suffix = props.encode(props.of_cluster(cluster)).encode()
        self._body_bytes_max = body_bytes_max

    def check_sent(self, text: str) -> None:
        """Raise RequestRefused if ``text``, the properties of a sent message, leaves no room for a redelivery."""
        check_sent_bytes(len(text.encode()) + len(self._suffix))

    def add(
        self,
        call: Call[SendRequest],
        *,
        tail: QueueTail,
        properties: dict[str, str],
        queue_id: int,
        before: PendingGroup | None = None,
        sequence: SequenceRange | None = None,
        more: Callable[[Stored, str], dict[str, str]] | None = None,
        lite: LiteTail | None = None,
    ) -> None:
        """Append a message to the queue of ``tail``, in one entry with the commands in ``before``.

        The answer names ``queue_id`` and the place of the message; ``more`` computes further fields from that place and
        the unique key. With ``lite``, the message is in the queue of a lite topic, too. ``sequence`` is the parsed
        sequence property, if known. Raises RequestRefused.
        """
        if len(call.body) > self._body_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the body has {len(call.body)} bytes; maximum: {self._body_bytes_max}"
            )
        unique_key = properties.get(props.UNIQUE_KEY)
        if not unique_key:
            unique_key = properties[props.UNIQUE_KEY] = self._unique_keys.next()
        # Overrides properties of the same names from the client: the last of equal names wins.
        text = props.fit(properties, self._suffix)
        assert len(text) <= props.PROPERTIES_BYTES_MAX, f"properties of {len(text)} bytes are said to fit"
        tags = properties.get(props.TAGS)
        send = PendingSend(
            tail.fixed_bytes + len(call.body) + len(text) + (0 if lite is None else lite.nbytes),
            call,
            tail,
            text,
            tag_code(tags) if tags else 0,
            unique_key.encode(),
            queue_id,
            sequence,
            more,
            lite,
        )
        self._appender.add_atomically([*before, send] if before else [send])
