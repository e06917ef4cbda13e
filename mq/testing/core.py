"""The operations of a test on its brokers, in their event loop."""

from __future__ import annotations

import datetime as dt
import time
from math import inf

import trio
import trio.testing

from mq.client.message import ReceivedMessage
from mq.protocol.names import dead_letter_topic
from mq.testing.clock import check_is_ahead
from mq.testing.cluster import Cluster
from mq.testing.pending import Pending, between_checks, pending_of
from mq.testing.stored import stored_messages, topics_of

_ROUNDS_MAX = 10_000
_THREADS_SECONDS_MAX = 0.1
_QUIET_SECONDS = 0.004
_DESCRIBED_MAX = 20
_TICKS_MAX = 1000


class Core:
    """Implements the methods of `Kit`, in the event loop of the brokers."""

    def __init__(self, cluster: Cluster, *, clients_elsewhere: bool) -> None:
        self._cluster = cluster
        self._clients_elsewhere = clients_elsewhere

    # -- time ----------------------------------------------------------------------------------------------------------

    def now(self) -> dt.datetime:
        """Return the brokers' time, in UTC."""
        return dt.datetime.fromtimestamp(self._now_ms() / 1000, tz=dt.UTC)

    def _now_ms(self) -> int:
        """The time that the leader believes: after a jump of the machine's clock, that is another one for a minute."""
        cluster = self._cluster
        return cluster.clock.wall_ms() if cluster.leader is None else cluster.context.wall_clock_ms()

    async def advance(self, seconds: float) -> None:
        """Advance the brokers' clock, and wait until they have delivered what is due by then.

        It stops at each tick of a schedule, as time does: otherwise many would be due at once, and most be given up.
        """
        clock = self._cluster.clock
        check_is_ahead(seconds)
        await self.settle()
        end = clock.seconds() + seconds
        for _ in range(_TICKS_MAX):
            ticks_ms = [each.due_ms for each in self.pending() if each.kind == "schedule"]
            wait = max(min(ticks_ms, default=inf) - self._now_ms(), 0) / 1000
            if clock.seconds() + wait >= end:
                break
            clock.advance(wait)
            await self.settle()
        clock.advance(max(end - clock.seconds(), 0))
        await self.settle()

    async def advance_to_next(self) -> Pending | None:
        """Advance the clock to the next time at which something is due. Returns that; None if nothing waits."""
        await self.settle()
        next_events = self.pending()
        if not next_events:
            return None
        wait_ms = next_events[0].due_ms - self._now_ms()
        self._cluster.clock.advance(max(wait_ms, 0) / 1000)
        await self.settle()
        if next_events[0].kind == "transaction":
            self._cluster.clock.advance(between_checks(self._cluster.context))
            await self.settle()
        return next_events[0]

    async def hop(self, pause_seconds: float) -> bool:
        """Works like `advance_to_next`, but if nothing waits, gives clients some time. Returns whether it advanced."""
        if await self.advance_to_next() is not None:
            return True
        await trio.sleep(pause_seconds)
        return False

    async def settle(self) -> None:
        """Wait until all tasks of the event loop wait, and the brokers have delivered everything that is due."""
        await self._threads_are_done()
        for _ in range(_ROUNDS_MAX):
            await trio.testing.wait_all_tasks_blocked()
            self._cluster.run_timers()
            await trio.testing.wait_all_tasks_blocked()
            now_ms = self._now_ms()
            if self._cluster.leader is None or not any(
                each.kind in ("delayed", "schedule") and each.due_ms <= now_ms for each in self.pending()
            ):
                return
        raise AssertionError(f"the brokers do not deliver messages that are due\n{self.describe()}")

    async def _threads_are_done(self) -> None:
        """Wait a moment for work in threads of this event loop, and for clients in other ones. This is real time: a
        virtual clock would jump meanwhile.
        """
        limiter = trio.to_thread.current_default_thread_limiter()
        deadline = time.monotonic() + _THREADS_SECONDS_MAX
        network = self._cluster.network
        while time.monotonic() < deadline and (
            limiter.borrowed_tokens
            or (self._clients_elsewhere and time.monotonic() < network.heard_at + _QUIET_SECONDS)
        ):
            if self._clients_elsewhere:
                await trio.sleep(_QUIET_SECONDS / 4)
            else:
                time.sleep(0.0005)  # noqa: ASYNC251
                await trio.lowlevel.checkpoint()

    # -- what the brokers have -----------------------------------------------------------------------------------------

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all messages of a topic that consumers could ever see, in the order in which they were stored."""
        return stored_messages(self._cluster.context, topic)

    def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Return the dead letters of a consumer group."""
        return self.messages(dead_letter_topic(group))

    def pending(self, topic: str | None = None) -> list[Pending]:
        """List the messages that wait for their time, the next one first; of one topic if it is named."""
        return [each for each in pending_of(self._cluster.context) if topic in (None, each.topic)]

    def topics(self) -> list[str]:
        """List the topics that have messages, including those of brokers and groups."""
        return list(topics_of(self._cluster.context))

    def describe(self) -> str:
        """Describe in words the messages that the brokers have, and those that wait for their time."""
        if self._cluster.leader is None:
            return "no replica leads"
        lines = [f"on {self.now():%Y-%m-%d %H:%M:%S} UTC, the brokers have:"]
        lines += [f"  {len(self.messages(topic))} messages in {topic}" for topic in self.topics()]
        lines += [
            f"  {each.kind} for {each.topic} until {each.due_at:%Y-%m-%d %H:%M:%S}: {each.message!r}"
            for each in self.pending()[:_DESCRIBED_MAX]
        ]
        return "\n".join(lines)

    # -- replicas ------------------------------------------------------------------------------------------------------

    @property
    def leader(self) -> str | None:
        """The replica that leads; None if none does."""
        return self._cluster.leader

    async def lose_leader(self) -> str:
        """Cut the leader off, and wait until another replica leads. Returns the name of the lost one."""
        if len(self._cluster.replicas) < 3:
            raise ValueError("a kit with one replica has no other one to lead: open it with replicas=3")
        leader = self._cluster.leader
        if leader is None:
            raise RuntimeError("no replica leads at the moment: wait_ready()")
        self._cluster.network.cut_off(leader)
        await self._cluster.wait_ready()
        return leader

    async def restore(self, replica: str) -> None:
        """Reconnect a lost replica, and wait until it has all entries."""
        self._cluster.network.reconnect(replica)
        await self._cluster.wait_ready()
        await self._cluster.wait_following(replica)

    def break_connections(self) -> None:
        """Break the connections of all clients."""
        self._cluster.network.break_clients()

    async def wait_ready(self) -> None:
        """Wait until a replica leads and clients find it."""
        await self._cluster.wait_ready()
