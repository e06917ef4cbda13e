"""Follows topics: reads each topic once for all tabs of a user, while at least one of them is open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog
import trio

from mq.client.admin import Admin
from mq.client.consume.process_queue import FlowLimits
from mq.client.consume.pull_consumer import PullConsumer
from mq.client.consume.pull_loop import PullSettings
from mq.client.errors import ClientError
from mq.client.filters import Sql
from mq.client.message import ReceivedMessage
from mq.client.net.client_core import RemotingSettings
from mq.filter.subscription import SubscriptionError
from mq.inspection.dead_letters import DEALT_WITH_BY
from mq.inspection.topic_tail import NEW_QUEUES_SECONDS, take_new_queues

ROWS_MAX: Final = 100
AGAIN_SECONDS: Final = 5.0
"""Seconds until another try after a failure."""
GENTLE: Final = PullSettings(batch_max=32, limits=FlowLimits(count_max=32, bytes_max=1024 * 1024))
"""At most the messages that a page shows are in memory for each queue: a topic may have hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLimits:
    """Limits of the topics that one user follows at a time."""

    per_second_max: int = 50
    """Messages that are read within a second; of a topic that gets more, the rest is left out."""
    watched_seconds: float = 10.0
    """A topic is read this long after a user looked; open pages look every two seconds."""
    tails_max: int = 8
    """Topics that are read at once."""


DEFAULT: Final = TailLimits()

Show = Callable[[ReceivedMessage], object]


class TooManyTails(Exception):
    """The console reads its maximum of topics; another one has to be closed first."""


class TailFilter(NamedTuple):
    """Selects the messages to follow: a topic, and a tag or an SQL92 expression."""

    topic: str
    tags: str
    sql: str

    @property
    def filter(self) -> str | Sql:
        """The filter expression in the form that consumers accept."""
        return Sql(self.sql) if self.sql else self.tags or "*"


class Tail:
    """The newest messages of a topic that a user follows.

    Attributes:
        rows: a row for each message, the newest first; their bodies may be large and are dropped.
        left_out: how many messages were not shown because they came too fast.
        fault: why the topic is no longer read; empty while it is read.
        scope: ends the reading when nobody has looked for `watched_seconds`, also while a broker is waited for.
    """

    def __init__(self) -> None:
        self.rows: deque[Any] = deque(maxlen=ROWS_MAX)
        self.left_out = 0
        self.fault = ""
        self.is_running = True
        self.scope = trio.CancelScope()
        self.end_time = 0.0
        self.has_begun = trio.Event()


class Tails:
    """Reads all topics that a user follows.

    Args:
        nursery: ends with the last session of the user.
    """

    def __init__(
        self,
        namesrv: str,
        remoting: RemotingSettings,
        admin: Admin,
        nursery: trio.Nursery,
        limits: TailLimits = DEFAULT,
    ) -> None:
        self._limits = limits
        self._namesrv = namesrv
        self._remoting = remoting
        self._admin = admin
        self._nursery = nursery
        self._tails: dict[TailFilter, Tail] = {}

    @property
    def running_count(self) -> int:
        """The number of topics that are being read."""
        return sum(each.is_running for each in self._tails.values())

    def follow(self, choice: TailFilter, show: Show) -> Tail:
        """Read a topic for another `watched_seconds`. Returns its messages so far, as rows that ``show`` makes.

        Raises TooManyTails.
        """
        now = trio.current_time()
        tail = self._tails.get(choice)
        if tail is None or (not tail.is_running and now >= tail.end_time + AGAIN_SECONDS):
            most = self._limits.tails_max
            if self.running_count >= most:
                raise TooManyTails(
                    f"this console already follows {most} topics, the maximum: close a tab, and wait some seconds"
                )
            for old in [each for each, other in self._tails.items() if not other.is_running]:
                del self._tails[old]
            tail = self._tails[choice] = Tail()
            self._nursery.start_soon(self._read, choice, tail, show)
        tail.scope.deadline = now + self._limits.watched_seconds
        return tail

    async def _read(self, choice: TailFilter, tail: Tail, show: Show) -> None:
        try:
            with tail.scope:
                await self._follow(choice, tail, show)
        except (ClientError, SubscriptionError) as error:
            tail.fault = str(error)
        except Exception as error:  # of one topic; the console continues, and says so
            structlog.get_logger("console").exception("console_look_failed", error=repr(error))
            tail.fault = f"{type(error).__name__}: see the log of this console"
        finally:
            tail.is_running = False
            tail.end_time = trio.current_time()
            tail.has_begun.set()

    async def _follow(self, choice: TailFilter, tail: Tail, show: Show) -> None:
        async with PullConsumer(
            self._namesrv, DEALT_WITH_BY, consume_from="last", pull=GENTLE, remoting=self._remoting
        ) as consumer:
            queues = await consumer.queues(choice.topic)
            await consumer.assign(queues, choice.filter)
            ends = await self._admin.topic_stats(choice.topic)
            count = max(1, self._limits.per_second_max // max(1, len(queues)))
            for queue in queues:
                if queue in ends:
                    await consumer.seek(queue, max(ends[queue].min_offset, ends[queue].max_offset - count))
            async for message in await consumer.read_to_end():
                tail.rows.appendleft(show(message))
            tail.has_begun.set()
            looked_at = trio.current_time()
            while True:
                await self._second(consumer, choice.topic, tail, show)
                if trio.current_time() >= looked_at + NEW_QUEUES_SECONDS:
                    looked_at = trio.current_time()
                    await take_new_queues(consumer, choice.topic, choice.filter)

    async def _second(self, consumer: PullConsumer, topic: str, tail: Tail, show: Show) -> None:
        """Read for a second at most; of a busy topic, continue at its end then."""
        deadline = trio.current_time() + 1.0
        count = 0
        while count < self._limits.per_second_max and (seconds := deadline - trio.current_time()) > 0:
            messages = await consumer.poll(self._limits.per_second_max - count, timeout=seconds)
            tail.rows.extendleft(map(show, messages))
            count += len(messages)
        if count < self._limits.per_second_max:
            return
        await trio.sleep_until(deadline)
        ends = await self._admin.topic_stats(topic)
        for queue in consumer.assignment & ends.keys():
            behind = ends[queue].max_offset - consumer.position(queue)
            if behind > self._limits.per_second_max:
                tail.left_out += behind
                await consumer.seek(queue, ends[queue].max_offset)
