"""Speaks RocketMQ's remoting protocol: sends with a JSON header, as stock clients write them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from benchmarks.load.frames import CODE, OPAQUE, REMARK, complete_bytes, lite_name, send_frame, topic_name
from benchmarks.wires.wire import LoadFailed, Slots


class RocketMQWire:
    """Speaks RocketMQ's protocol. The opaque identifies a request; the same frame is sent repeatedly."""

    def __init__(self, slots: Slots) -> None:
        self._frames = {
            b"%d" % slot: send_frame(
                slot,
                slots.body_bytes,
                slot % slots.queues,
                topic=topic_name(slot // slots.queues % slots.topics),
                batch=slots.batch,
                keys=slots.keys,
                body=slots.body(slot),
                lite_topic=lite_name(slot % slots.lite_topics) if slots.lite_topics else None,
            )
            for slot in slots.numbers
        }

    def open(self, sock: socket.socket) -> None:
        """Do nothing: there is no handshake before the first request."""

    def initial(self) -> tuple[Iterable[bytes], bytes]:
        """Return the opaques of all slots, and the bytes of their frames."""
        return self._frames, b"".join(self._frames.values())

    def idle(self) -> Sequence[bytes]:
        """Return the opaques of all slots."""
        return list(self._frames)

    def read_responses(self, data: bytes) -> tuple[Sequence[bytes], int]:
        """Read responses. Each of them must have code 0."""
        frames, end = complete_bytes(data)
        replies = data if end == len(data) else data[:end]
        opaques = OPAQUE.findall(replies)
        codes = CODE.findall(replies)
        if len(opaques) != frames or codes.count(b"0") != frames:
            remarks = [remark.decode(errors="replace") for remark in REMARK.findall(replies)][:3]
            raise LoadFailed(
                f"{frames} replies, of which not all are good: codes {sorted(set(codes))}, remarks {remarks}"
            )
        return opaques, end

    def repeat(self, keys: Sequence[bytes]) -> tuple[Iterable[bytes], bytes]:
        """Return the opaques, and the bytes of their frames, to send them again."""
        frame_of = self._frames
        return keys, b"".join([frame_of[opaque] for opaque in keys])
