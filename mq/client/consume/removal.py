"""Detects that an operator removed this consumer from its group."""

from __future__ import annotations

from collections.abc import Callable

from mq.client.events import ClientEvent
from mq.client.logs import log
from mq.protocol.errors import ReplyError
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.removed_members import KeptOutReply
from mq.protocol.wire.reply import read_reply

PAUSE_SECONDS_MAX = 5.0
"""Between two pops of a removed consumer: it may be readmitted."""


class OwnRemoval:
    """Tracks what each broker group answers, and reports the removal to the application once.

    Attributes:
        seconds: for how long the client is kept out, when that was said.
        reason: why.
    """

    def __init__(self, group: str, emit: Callable[[ClientEvent], object]) -> None:
        self._group = group
        self._emit = emit
        self._said_by: set[str] = set()
        self.seconds = 0.0
        self.reason = ""

    @property
    def is_removed(self) -> bool:
        """Whether the last answer of any broker group said that the client is removed."""
        return bool(self._said_by)

    @property
    def pause_seconds(self) -> float:
        """The seconds to wait before the next request for messages."""
        return min(self.seconds, PAUSE_SECONDS_MAX)

    def check_response(self, response: Response, broker_name: str = "") -> bool:
        """Read an answer to a member's request. Returns whether it says that the client is removed.

        ``broker_name`` is the broker group that answers, if all are asked in turn: one may have forgotten the removal.
        """
        try:
            reply = read_reply(KeptOutReply, response.ext)
        except ReplyError:
            reply = KeptOutReply()
        if reply.kept_out_ms <= 0:
            was_removed = self.is_removed
            self._said_by.discard(broker_name)
            if was_removed and not self.is_removed:
                log.info("let_into_group_again", group=self._group)
            return False
        is_new = not self.is_removed or reply.reason != self.reason
        self._said_by.add(broker_name)
        self.seconds, self.reason = reply.kept_out_ms / 1000, reply.reason
        if is_new:
            log.warning("removed_from_group", group=self._group, reason=reply.reason, seconds=round(self.seconds))
            self._emit(ClientEvent("removed", self._group, reply.reason))
        return True
