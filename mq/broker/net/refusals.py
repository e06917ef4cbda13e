"""The error with which the broker refuses a request, and the text for a full disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mq.protocol.codes import ResponseCode
from mq.protocol.errors import ProtocolError

T = TypeVar("T")

DISK_FULL = (
    "DISK_FULL: service not available now. It may be caused by one of the following reasons: the broker's disk is full "
    "[CL: {0:5.2f} CQ: {0:5.2f} INDEX: -1.00], messages are put to the slave, message store has been shut down, etc."
)
"""The text of RocketMQ brokers, since users search for it; the number is the used part of the disk."""


class RequestRefused(Exception):
    """The broker refuses a request and has not executed it. The client gets ``code``, ``remark`` and ``ext``."""

    def __init__(self, code: ResponseCode, remark: str, *, ext: dict[str, str] | None = None) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
        self.ext = ext


def decode_body(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode the body of a request. Raises RequestRefused if it is malformed."""
    try:
        return decode(body)
    except ProtocolError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def check_level(level: int, needed_level: int, what: str) -> None:
    """Raise RequestRefused if the group is below ``needed_level``; ``what`` says for which feature: "quotas need"."""
    if level < needed_level:
        raise RequestRefused(
            ResponseCode.VERSION_NOT_SUPPORTED,
            f"the group is at format level {level}, {what} {needed_level}: not all members are upgraded",
        )
