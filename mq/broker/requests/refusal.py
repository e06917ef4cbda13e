"""A request that the broker answers with an error code instead of doing it."""

from __future__ import annotations

from mq.protocol.codes import ResponseCode


class RequestRefused(Exception):
    """Certainly nothing happened; the client gets ``code`` and ``remark``."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
