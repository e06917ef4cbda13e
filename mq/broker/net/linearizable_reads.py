"""Linearizable reads that survive a change of leadership, and handlers that reply once one is through.

A read asks the leader what is committed, and fails when that one loses its place. Then another one can tell a moment
later, and whoever asked shall not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mq.broker.net.call import Call
from mq.broker.net.errors import RequestRefused
from mq.protocol.codes import ResponseCode

Read = Callable[[Callable[[bool], None]], None]
"""Calls back with True once all is applied that was committed anywhere before, or with False when nobody can tell."""

OnRead = Callable[[bool], None]

PATIENCE_SECONDS = 2.5
"""Stock clients wait 3 s for an answer."""

WAITING_MAX = 100_000
"""While so many reads are open, further ones fail at once."""


class LinearizableReads:
    """Tries reads again until somebody can tell.

    Args:
        read: one attempt; calls back with True once all is applied that was committed anywhere before, or with False
            when nobody can tell.
        clock: monotonic seconds.
    """

    def __init__(self, read: Callable[[OnRead], None], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._failed: list[tuple[OnRead, float]] = []
        self._open = 0

    def read(self, on_read: OnRead) -> None:
        """As one attempt, but ``on_read(False)`` comes only after `PATIENCE_SECONDS` in vain."""
        self._begin(on_read, self._clock() + PATIENCE_SECONDS)

    def read_once(self, on_read: OnRead) -> None:
        """One attempt; ``on_read(False)`` comes when this replica knows about its role what can be known."""
        self._begin(on_read, 0.0)

    def try_again(self) -> None:
        """Repeat what failed; to be called when somebody else leads or nobody, and by a timer."""
        failed, self._failed = self._failed, []
        now = self._clock()
        for on_read, until in failed:
            if until <= now:
                self._open -= 1
                on_read(False)
            else:
                self._attempt(on_read, until)

    def _begin(self, on_read: OnRead, until: float) -> None:
        if self._open >= WAITING_MAX:
            on_read(False)
        else:
            self._open += 1
            self._attempt(on_read, until)

    def _attempt(self, on_read: OnRead, until: float) -> None:
        def known(is_known: bool) -> None:
            if is_known:
                self._open -= 1
                on_read(True)
            else:
                self._failed.append((on_read, until))

        self._read(known)


def when_current(read: Read, call: Call[Any], answer: Callable[[], bytes]) -> None:
    """Send what ``answer`` returns, or the refusal that it raises, once this replica is up to date."""

    call.drop_body()

    def known(is_known: bool) -> None:
        if call.connection.closed:
            return
        try:
            if not is_known:
                raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the group has no leader to confirm this read")
            reply = answer()
        except Exception as error:
            call.refuse(error)
        else:
            call.answer(reply)

    read(known)
