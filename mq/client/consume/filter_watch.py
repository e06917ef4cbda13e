"""Warns when a consumer receives nothing because its filter rejects all messages of a topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mq.client.events import ClientEvent
from mq.client.limits import ClientLimits
from mq.client.long_wait import LongWait
from mq.filter.subscription import Subscription


class FilterWatch:
    """Counts the messages that filters reject, per subscription, until the first message matches.

    If none has for 10 s, that is logged once (`nothing_matches`), and told as an event.
    """

    def __init__(self, group: str, emit: Callable[[ClientEvent], None], limits: ClientLimits) -> None:
        self._group = group
        self._emit = emit
        self._limits = limits
        self._misses: Counter[tuple[str, str]] = Counter()
        self._with_matches: set[tuple[str, str]] = set()
        self._waits: dict[tuple[str, str], LongWait] = {}

    def count_pull(self, subscription: Subscription, received_count: int, passed_over: int) -> None:
        """Count the messages that a pull returned, and the offsets that the broker passed over."""
        program = subscription.program
        key = subscription.topic, subscription.expression if program is None else program.name.text
        if key in self._with_matches or key[1] == "*":
            return
        if received_count:
            self._with_matches.add(key)
            return
        self._misses[key] += passed_over
        if not self._misses[key]:
            return
        reason = f"{self._misses[key]} messages were passed over, and none matches {key[1]!r}; is the filter right?"
        wait = self._waits.setdefault(key, LongWait("nothing_matches", self._limits, once=True))
        if wait.warn_if_long(reason, group=self._group, topic=key[0]):
            self._emit(ClientEvent("stuck", key[0], reason))
