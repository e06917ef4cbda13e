"""Requests that store a message which is not the client's own as it stands: delayed, given back, dead."""

from __future__ import annotations

from collections.abc import Callable

from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.outcome import Stored
from mq.broker.write_path.pending import PendingGroup, PendingSend, SendRequest
from mq.broker.write_path.queue_offsets import NextOffset
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.hashes import UniqKeyGenerator, tag_code
from mq.protocol.sequencing import SequenceRange


def encode_properties(properties: dict[str, str], suffix: bytes = b"") -> bytes:
    """The properties of a record, and behind them those in ``suffix``. Raises RequestRefused if they are too long."""
    encoded = props.encode(properties).encode() + suffix
    if len(encoded) > props.PROPERTIES_BYTES_MAX:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"properties of {len(encoded)} bytes; maximum: {props.PROPERTIES_BYTES_MAX}",
        )
    return encoded


class InternalMessages:
    """Stores what clients send, in another queue or with other properties than they said, and answers them."""

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

    def add(
        self,
        call: Call[SendRequest],
        *,
        tail: NextOffset,
        properties: dict[str, str],
        queue_id: int,
        before: PendingGroup | None = None,
        sequence: SequenceRange | None = None,
        more: Callable[[Stored, str], dict[str, str]] | None = None,
    ) -> None:
        """Store the message at ``tail``, in one entry with the commands in ``before``.

        The answer names ``queue_id``, and the place where the message is; ``more`` makes further fields of it from that
        place and the message's unique key. ``sequence`` is what the properties say, if it is known. Raises
        RequestRefused.
        """
        if len(call.body) > self._body_bytes_max:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"body of {len(call.body)} bytes; maximum: {self._body_bytes_max}"
            )
        unique_key = properties.get(props.UNIQUE_KEY)
        if not unique_key:
            unique_key = properties[props.UNIQUE_KEY] = self._unique_keys.next()
        # What the client may have said of the same names does not count any more: of equal names the last one does.
        encoded = encode_properties(properties, self._suffix)
        tags = properties.get(props.TAGS)
        send = PendingSend(
            tail.fixed_bytes + len(call.body) + len(encoded),
            call,
            tail,
            encoded,
            tag_code(tags) if tags else 0,
            unique_key.encode(),
            queue_id,
            sequence,
            more,
        )
        self._appender.add_atomically([*before, send] if before else [send])
