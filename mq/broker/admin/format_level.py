"""Raises the format level of the group once all members understand a higher one; see `mq.broker.state.format_level`."""

from __future__ import annotations

from collections.abc import Iterator

from mq.broker.context import BrokerContext
from mq.broker.net.service import Periodic, Service
from mq.broker.state.commands import encode_command
from mq.broker.state.format_level import RaiseLevel, announced_level, next_level

_LOOK_SECONDS = 1.0


class LevelRaises(Service):
    """What a leader does about the format level.

    A member that is not connected holds the level back, as does one whose settings do.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    def periodic(self) -> Iterator[Periodic]:
        """Actions and the seconds in between; see `Service`."""
        yield _LOOK_SECONDS, self.look

    def look(self) -> None:
        """Propose the next level if that is possible. It may be proposed again before it is committed."""
        context = self._context
        level, own = context.metadata.format_level.level, announced_level(context.settings.format_level_max)
        if level >= own or not context.appender.is_open:
            return
        others = {*context.members()} - {context.settings.node_id}
        software = [context.environment.peer_software(node) for node in sorted(others)]
        wanted = next_level(level, own, [None if each is None else each.level_newest for each in software])
        if wanted > level:
            command = RaiseLevel(level=wanted, timestamp_ms=context.wall_clock_ms())
            context.appender.add_command(encode_command(command))
