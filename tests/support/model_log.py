"""The log of one replica as a list, for models of services."""

from __future__ import annotations

from collections.abc import Callable

from mq.protocol.messages.records import encode_host
from raftlog import Refusal

HOST = encode_host("127.0.0.1", 10911)
HEADER = bytes(48)


class Log:
    """The log of the leading replica: what is committed, and what was framed behind it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.committed: list[tuple[int, bytes, bytes]] = []
        self.framed: list[tuple[int, bytes, bytes]] = []
        self.refusals: list[Refusal | None] = []

    @property
    def end_pos(self) -> int:
        return len(self.data)

    def pread(self, position: int, nbytes: int) -> bytes:
        assert position + nbytes <= len(self.data)
        return bytes(self.data[position : position + nbytes])

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal:
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            return refusal
        position = len(self.data) + len(HEADER)
        body, annotation = build(position)
        self.data += HEADER + body
        self.framed.append((position, body, annotation))
        return len(self.committed) + len(self.framed)

    def cut(self) -> None:
        """Another replica leads, which never got the uncommitted part."""
        if self.framed:
            del self.data[self.framed[0][0] - len(HEADER) :]
            self.framed.clear()
