"""One user's view of the cluster, which sends one request for all open pages, at most every few seconds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog
import trio

from mq.client.errors import BrokerError, ClientError, NameServersUnavailable
from mq.client.message import MessageQueue
from mq.client.net.client_core import RemotingSettings
from mq.console import lags
from mq.console.events import Events
from mq.console.history import EVERY_SECONDS, History
from mq.console.tails import DEFAULT, TailLimits, Tails
from mq.inspection.cluster import GroupStatus, ask_brokers
from mq.inspection.cluster_queries import OfReplicas, QueryingAdmin
from mq.inspection.members import Member, members_of
from mq.inspection.operator_changes import ChangingAdmin
from mq.inspection.survey import Survey, survey
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.bulk import LeaseList
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.pending import KINDS, SHOWN_MAX, PendingInfo, PendingKind
from mq.protocol.requests.removed_members import KeptOutMember
from mq.protocol.requests.topics import TopicConfig

CLUSTER_SECONDS: Final = 2.0
CATALOGUE_SECONDS: Final = 5.0
SURVEY_SECONDS: Final = 30.0
QUEUES_PER_SECOND: Final = 250
"""The rate of background questions about the progress of groups: a leader pays about 8 us for each queue of a
group in an answer, and a survey asks twice.
"""
REQUEST_QUEUES: Final = 6
"""A survey makes a request for each group that lags, and others; each costs as much as this number of queues in both
answers.
"""
PENDING_SECONDS: Final = 5.0
MEMBERS_SECONDS: Final = 10.0
"""Each member of a group is asked for its queues, so a group is asked less often than brokers."""
GROUPS_KEPT_MAX: Final = 100
"""Groups whose members are remembered."""
WATCHED_SECONDS: Final = 3.0
"""The seconds for which a survey watches whether consumer groups make progress."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedAnswer(Generic[T]):
    """The last answer and its time. ``fault`` says why there is no newer one.

    ``at`` is on the clock of the event loop.
    """

    value: T | None
    at: float
    fault: str = ""


def words_of(error: ClientError) -> str:
    """Describe on a page why a part of it is missing, and what to do if that is known."""
    if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
        return f"Not all is shown, since the brokers do not allow you to see it: {error.remark or error}"
    if isinstance(error, NameServersUnavailable):
        return f"{error}. What to do: see that name servers run, and that the console has their addresses (--namesrv)"
    return str(error)


class SharedAnswer(Generic[T]):
    """Shares one answer among all who ask within ``seconds``; who asks during the request waits for it.

    A failure is an answer, too: a dead server is not asked once per tab. It keeps the last good value.

    Args:
        least: returns for how many seconds an answer is used at least, if it costs the servers much.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[T]], seconds: float, least: Callable[[T], float] | None = None
    ) -> None:
        self._ask = ask
        self._seconds_min = self._seconds = seconds
        self._least = least
        self._lock = trio.Lock()
        self._answer: CachedAnswer[T] | None = None
        self._requested_at = float("-inf")

    async def get(self) -> CachedAnswer[T]:
        """Return an answer that is at most ``seconds`` old, or an older one if the servers do not give a newer one."""
        async with self._lock:
            now = trio.current_time()
            if self._answer is not None and now < self._requested_at + self._seconds:
                return self._answer
            try:
                value = await self._ask()
            except ClientError as error:
                before = self._answer
                self._answer = CachedAnswer(
                    None if before is None else before.value, 0 if before is None else before.at, words_of(error)
                )
            else:
                self._answer = CachedAnswer(value, trio.current_time())
                if self._least is not None:
                    self._seconds = max(self._seconds_min, self._least(value))
            self._requested_at = trio.current_time()
            return self._answer

    def latest(self, nursery: trio.Nursery) -> CachedAnswer[T] | None:
        """Return the last answer without waiting, None if there is none. If it is old, asks again in the background."""
        is_old = trio.current_time() >= self._requested_at + self._seconds
        if is_old and not self._lock.locked():
            nursery.start_soon(self._refresh)
        return self._answer

    async def _refresh(self) -> None:
        try:
            await self.get()
        except Exception as error:  # of one look at the servers; the console continues, and says so
            structlog.get_logger("console").exception("console_look_failed", error=repr(error))
            async with self._lock:
                self._answer = CachedAnswer(None, 0, f"{type(error).__name__}: see the log of this console")
                self._requested_at = trio.current_time()

    def forget(self) -> None:
        """Make the next caller ask the servers, after a change."""
        self._requested_at = float("-inf")


Topics = Mapping[str, Mapping[str, TopicConfig]]
Groups = Mapping[str, Mapping[str, SubscriptionGroupConfig]]
Progress = Mapping[str, Mapping[MessageQueue, GroupProgress]]
Offsets = Mapping[str, Mapping[MessageQueue, int]]


def queues_of(progress: Progress) -> int:
    """Return in how many queues groups have offsets, summed over the groups."""
    return sum(map(len, progress.values()))


def _least_of_survey(survey: Survey) -> float:
    if (consumers := survey.consumers) is None:
        return 0.0
    request_count = len(consumers.members) + len(consumers.at_risk) + len(consumers.ends) + len(consumers.dead_letters)
    return (queues_of(consumers.after) + REQUEST_QUEUES * request_count) / QUEUES_PER_SECOND


class Watch:
    """The view of the cluster that one user has; made by `open`.

    Attributes:
        querying_admin: sends queries; leaves out broker groups without a leader.
        changing_admin: makes changes; needs an answer from all broker groups.
        nursery: for tasks that outlive their request; ends with the last session of the user.
        remoting: settings of the connections that further clients of this user open.
    """

    def __init__(
        self,
        namesrv: str,
        remoting: RemotingSettings,
        querying_admin: QueryingAdmin,
        changing_admin: ChangingAdmin,
        nursery: trio.Nursery,
        tail_limits: TailLimits = DEFAULT,
    ) -> None:
        self.nursery = nursery
        self.namesrv = namesrv
        self.remoting = remoting
        self.querying_admin = querying_admin
        self.changing_admin = changing_admin
        self.cluster: SharedAnswer[list[GroupStatus]] = SharedAnswer(
            partial(ask_brokers, querying_admin), CLUSTER_SECONDS
        )
        self.topics: SharedAnswer[Topics] = SharedAnswer(querying_admin.topic_configs, CATALOGUE_SECONDS)
        self.pending: Mapping[PendingKind, SharedAnswer[Mapping[str, PendingInfo] | None]] = {
            kind: SharedAnswer(partial(querying_admin.pending, kind, SHOWN_MAX), PENDING_SECONDS) for kind in KINDS
        }
        self.names: SharedAnswer[list[str]] = SharedAnswer(querying_admin.topics, CATALOGUE_SECONDS)
        self.groups: SharedAnswer[Groups] = SharedAnswer(querying_admin.consumer_groups, CATALOGUE_SECONDS)
        self.progress: SharedAnswer[Progress] = SharedAnswer(querying_admin.all_progress, CATALOGUE_SECONDS)
        self.offsets: SharedAnswer[Offsets] = SharedAnswer(querying_admin.group_offsets, CATALOGUE_SECONDS)
        self.leases: SharedAnswer[OfReplicas[LeaseList]] = SharedAnswer(querying_admin.leases, CATALOGUE_SECONDS)
        self.history = History()
        self.lags = lags.LagHistory()
        self.events = Events()
        self.tails = Tails(namesrv, remoting, querying_admin, nursery, tail_limits)
        self._members: dict[str, SharedAnswer[list[Member]]] = {}
        self._removed_members: dict[str, SharedAnswer[list[KeptOutMember]]] = {}
        self.survey: SharedAnswer[Survey] = SharedAnswer(
            partial(survey, namesrv, watch_seconds=WATCHED_SECONDS, remoting=remoting), SURVEY_SECONDS, _least_of_survey
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, namesrv: str, remoting: RemotingSettings, tail_limits: TailLimits = DEFAULT
    ) -> AsyncGenerator[Watch]:
        """Open a view while the block runs. It connects at the first question."""
        async with (
            QueryingAdmin(namesrv, remoting=remoting) as querying_admin,
            ChangingAdmin(namesrv, remoting=remoting) as changing_admin,
            trio.open_nursery() as nursery,
        ):
            watch = cls(namesrv, remoting, querying_admin, changing_admin, nursery, tail_limits)
            nursery.start_soon(watch.keep_history)
            yield watch
            nursery.cancel_scope.cancel()

    async def keep_history(self) -> None:
        """Record rates and events of all broker groups, and lags of all consumer groups, until cancelled."""
        lags_at = trio.current_time() + EVERY_SECONDS
        while True:
            try:
                lags_at = await self._sample(lags_at)
            except Exception as error:  # a broker that answers nonsense must not end the console
                structlog.get_logger("console").exception("console_look_failed", error=repr(error))
            await trio.sleep(EVERY_SECONDS)

    async def _sample(self, lags_at: float) -> float:
        """Note how all broker groups are now, and the lags from ``lags_at`` on; returns when those are due again."""
        cached = await self.cluster.get()
        if cached.fault:
            return lags_at
        groups = cached.value or ()
        self.history.add(groups, trio.current_time())
        self.events.add(groups, trio.current_time())
        # Lags of a broker group without a leader are unknown: the next ones are noted when it has one.
        if trio.current_time() < lags_at or any(group.is_leaderless for group in groups):
            return lags_at
        progress = await self.progress.get()
        if not progress.fault:
            self.lags.add(progress.value or {}, trio.current_time())
        return trio.current_time() + max(lags.EVERY_SECONDS, queues_of(progress.value or {}) / QUEUES_PER_SECOND)

    async def is_stock(self) -> bool:
        """Whether all broker groups that answer are of Apache RocketMQ."""
        groups = [group for group in (await self.cluster.get()).value or () if any(r.figures for r in group.replicas)]
        return bool(groups) and all(group.is_stock for group in groups)

    async def left_out(self) -> str:
        """Name the broker groups that lists leave out because they have no leader; empty if there are none."""
        names = [group.group for group in (await self.cluster.get()).value or () if group.is_leaderless]
        return f"This is a part: {', '.join(names)} without a leader cannot be asked" if names else ""

    def members(self, group: str) -> SharedAnswer[list[Member]]:
        """Return the shared answer with the members of a consumer group."""
        if group not in self._members:
            self._members[group] = SharedAnswer(partial(members_of, self.querying_admin, group), MEMBERS_SECONDS)
            if len(self._members) > GROUPS_KEPT_MAX:
                del self._members[next(iter(self._members))]
        return self._members[group]

    def removed_members(self, group: str) -> SharedAnswer[list[KeptOutMember]]:
        """Return the shared answer with the removed members of a consumer group."""
        if group not in self._removed_members:
            self._removed_members[group] = SharedAnswer(
                partial(self.querying_admin.removed_members.kept_out, group), MEMBERS_SECONDS
            )
            if len(self._removed_members) > GROUPS_KEPT_MAX:
                del self._removed_members[next(iter(self._removed_members))]
        return self._removed_members[group]

    def forget_answers(self) -> None:
        """Ask the servers again after a change through this console, so that pages show it at once."""
        answers: tuple[SharedAnswer[Any], ...] = (
            *(self.cluster, self.topics, self.names, self.groups, self.progress, self.offsets, self.survey),
            *self.pending.values(),
            *self._members.values(),
            *self._removed_members.values(),
        )
        for each in answers:
            each.forget()
