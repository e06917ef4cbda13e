"""Warns when a client waits long, and logs the reason.

Consumers wait for name servers, brokers and leaders without a limit: they continue when these are back. Moments without
them are normal; a wait of more than ten seconds is worth a warning, and then one every half minute.
"""

from __future__ import annotations

from typing import Any

import anyio

from mq.client.limits import ClientLimits
from mq.client.logs import log


class LongWait:
    """A wait for one thing. Call `warn_if_long` for each failed attempt, and `end` for the first success.

    With `once`, there is one warning for each wait: the state may be intended, such as a spare member of a group.
    """

    __slots__ = ("_event", "_limits", "_once", "_since", "_warn_at", "reason")

    def __init__(self, event: str, limits: ClientLimits, *, once: bool = False) -> None:
        self._limits = limits
        self._event = event
        self._once = once
        self._since: float | None = None
        self._warn_at = 0.0
        self.reason: str | None = None
        """Why it is missing now."""

    def warn_if_long(self, reason: object, **fields: Any) -> bool:
        """Log a warning with `reason` if the wait has lasted for long; returns whether it did."""
        self.reason = str(reason)
        now = anyio.current_time()
        if self._since is None:
            self._since, self._warn_at = now, now + self._limits.warn_after_seconds
        elif now >= self._warn_at:
            self._warn_at = float("inf") if self._once else now + self._limits.warn_every_seconds
            log.warning(self._event, **fields, reason=str(reason), seconds=round(now - self._since))
            return True
        return False

    def end(self) -> None:
        """End the wait, because what the client waited for has come."""
        self._since = self.reason = None
