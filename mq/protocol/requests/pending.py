"""Our own request 9017, which shows the messages that are stored but not visible yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from mq.protocol.codes import RequestCode as Code
from mq.protocol.wire.fields import I32
from mq.protocol.wire.json_body import Body
from mq.protocol.wire.request import Ext, Request

PendingKind = Literal["timed", "half", "given-up"]
KINDS: Final[tuple[PendingKind, ...]] = ("timed", "half", "given-up")
SHOWN_MAX: Final = 100
"""Messages that an answer names at most."""


class AskPendingExt(Ext):
    """The header of 9017. ``kind`` (`KINDS`): delayed and timed messages, half messages, or given-up transactions."""

    kind: str
    count: I32 = 50


class AskPending(Request, tag=int(Code.ASK_PENDING)):
    """Request code 9017, our own: return the number of waiting messages of a kind, their waits, and the first ones."""

    ext: AskPendingExt = msgspec.field(name="extFields")


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not visible yet. Times are milliseconds since 1970.

    ``checks`` counts check-backs with its producer group, ``group``; ``is_put_off`` says that they were put off, as
    the producer asked, or because it could not be read. ``handle`` recalls it; empty if it cannot be recalled.
    """

    topic: str
    message_id: str
    offset_message_id: str
    stored_ms: int
    body_bytes: int
    keys: str = ""
    tags: str = ""
    due_ms: int = 0
    level: int = 0
    handle: str = ""
    group: str = ""
    checks: int = 0
    is_put_off: bool = False


class PendingInfo(Body, kw_only=True):
    """The messages of a broker group that are not visible yet.

    ``total`` is the number of all, ``looked_at`` of the messages that ``counts`` and ``messages`` are about. ``counts``
    is of timed messages: the number that is due within each number of seconds, and not within a smaller one; messages
    that are due in more than a day are counted as due within a day, since they are looked at again then. ``messages``
    are the first ones: timed ones by their time, others by age.
    """

    total: int
    looked_at: int
    counts: list[tuple[int, int]]
    messages: Sequence[PendingMessage]
