"""Raises the format level of the group once all members support a higher one; see `mq.broker.state.format_level`."""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.base.periodic_task import Periodic
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.state.commands import encode_command
from mq.broker.state.format_level import RaiseLevel, announced_level, next_level

_AGAIN_SECONDS = 10.0
"""A proposal that has not taken effect by then is repeated: the disk may have been full."""


class LevelRaises(Service):
    """Raises the format level of the group while this replica leads.

    A disconnected member, or one whose settings limit the level, keeps it from rising.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._not_before = 0.0

    def lead(self) -> None:
        self._not_before = 0.0

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(self._context.limits.upkeep.raise_level_seconds, self.propose_next)

    def propose_next(self) -> None:
        """Propose the next format level if all members support it."""
        context = self._context
        level, own = context.metadata.format_level.level, announced_level(context.settings.format_level_max)
        if level >= own or not context.appender.is_open or context.clock() < self._not_before:
            return
        others = {*context.members()} - {context.settings.node_id}
        software = [context.environment.peer_software(node) for node in sorted(others)]
        target = next_level(level, own, [None if each is None else each.level_newest for each in software])
        assert level <= target <= own, f"level {level} is to become {target}; this replica understands {own}"
        if target > level:
            self._not_before = context.clock() + _AGAIN_SECONDS
            command = RaiseLevel(level=target, timestamp_ms=context.wall_clock_ms())
            context.appender.add_command(encode_command(command))
