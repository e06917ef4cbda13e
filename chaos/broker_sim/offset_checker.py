"""Compares committed consumer offsets and locks with the actions of members and the responses to them.

What must hold: an offset moves back only by a reset, or by the commit of a member that read from there again or wanted
a response; no commit is answered with success that had no effect. A queried offset is the current one; an offset passes
no message that was neither handled, sent back, nor skipped by a reset; after a reset it stays until a member has
started there. A queue that a member knows to hold locked is held by no other member, ordered handling skips nothing,
and a member that lost a queue can no longer move its offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.broker_sim.clients import ClientResponse
from chaos.violation import Violation
from mq.broker.state.commands import CommitOffsets, LockQueues, ResetOffset, UnlockQueues
from mq.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from chaos.broker_sim.workload import Workload

LOCK_SECONDS = 4.0
"""Seconds for which brokers keep a lock; a member relies on half of that."""

_CLOCK_RATE_MAX = 1.05
_KEPT_SECONDS = LOCK_SECONDS / _CLOCK_RATE_MAX
_NONE = -1

Key = tuple[str, str, int]
"""Group, topic and queue id."""


class GroupPlan(NamedTuple):
    """A consumer group of a run."""

    name: str
    queues: tuple[tuple[str, int], ...]
    ordered: bool

    @property
    def keys(self) -> list[Key]:
        """The queues of the group."""
        return [(self.name, topic, queue_id) for topic, queue_id in self.queues]


class OffsetChecker:
    """Checks offsets and locks. Members report what they do; every method raises `Violation` for a forbidden action.

    Args:
        exact: whether the clocks of brokers are never set, so that locks last their full time.
    """

    def __init__(self, workload: Workload, plans: tuple[GroupPlan, ...], *, exact: bool) -> None:
        self._workload = workload
        self._ordered_groups = {plan.name for plan in plans if plan.ordered}
        self._groups = {plan.name for plan in plans}
        self._exact = exact
        self.offsets: dict[Key, list[int]] = defaultdict(lambda: [_NONE])
        """All offsets that a group had in a queue, in order; -1 before the first one."""
        self._resets: Counter[Key] = Counter()
        self._handled_offsets: dict[Key, set[int]] = defaultdict(set)
        self._passable: Counter[Key] = Counter()
        """The offset below which everything was handled or skipped."""
        self._restart_offsets: dict[Key, int] = {}
        """The offset at which a member must start before the group's offset may move on."""
        self._pulls: Counter[tuple[Key, int]] = Counter()
        """Pulls that are or may be in flight."""
        self._timed_commits: dict[Key, list[tuple[str, int, float]]] = defaultdict(list)
        """The member, offset and time of each commit."""
        self._answerable: dict[Key, set[int]] = defaultdict(set)
        """Offsets that members committed with a response."""
        self._read_from: dict[Key, dict[str, int]] = defaultdict(dict)
        """The lowest offset from which each member pulled."""
        self._commits: dict[Key, set[tuple[str, int]]] = defaultdict(set)
        """The member and offset of each commit, with a response or without."""
        self._holders: dict[Key, tuple[str, float]] = {}
        """The member that holds a queue's lock according to the log, and since when."""
        self._lock_times: dict[tuple[str, Key], float] = {}
        self._unlocks: Counter[tuple[str, Key]] = Counter()
        """Queues that may be unlocked at any time: the number of unanswered unlock requests."""
        self._unlock_times: dict[tuple[str, Key], float] = {}
        """The time at which a queue was last unlocked; an earlier lock request proves nothing."""

    @property
    def _now(self) -> float:
        return self._workload.cluster.now

    def offset(self, key: Key) -> int:
        """Return a group's offset, -1 if it has none."""
        return self.offsets[key][-1]

    # -- what members do -----------------------------------------------------------------------------------------------

    def begin_query(self, key: Key) -> object:
        """Record that a member queries an offset. Pass the result to `end_query`."""
        return len(self.offsets[key])

    def end_query(self, key: Key, count: object, response: ClientResponse) -> None:
        """Check a queried offset: the group must have had it at some time since the query began."""
        assert isinstance(count, int), f"no number of offsets: {count}"
        since = self.offsets[key][count - 1 :]
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            fits = since[0] == _NONE
        elif response.code == ResponseCode.SUCCESS:
            fits = int(response.ext["offset"]) in since or (since[0] == _NONE and response.ext["offset"] == "0")
        else:
            return
        self._workload.counts["offsets told"] += 1
        if not fits:
            raise Violation(f"offset: {key} was returned as {response}, but since the query it was {since}")

    def begin_pull(self, member: str, key: Key, offset: int) -> None:
        """Record that a member sends a pull."""
        self._read_from[key][member] = min(offset, self._read_from[key].get(member, offset))
        self._pulls[key, offset] += 1
        if self._restart_offsets.get(key) == offset:
            del self._restart_offsets[key]

    def end_pull(self, key: Key, offset: int) -> None:
        """Record the response to a pull. A pull without a response may still be in flight."""
        self._pulls[key, offset] -= 1

    def begin_commit(self, member: str, key: Key, offset: int, *, waits: bool = False) -> object:
        """Record that a member commits, and whether it waits for a response. Pass the result to `end_commit`."""
        if key[0] in self._ordered_groups:
            self._timed_commits[key].append((member, offset, self._now))
        self._commits[key].add((member, offset))
        if waits:
            self._answerable[key].add(offset)
        return self._resets[key], len(self.offsets[key])

    def end_commit(self, key: Key, offset: int, commit: object) -> None:
        """Check a successful commit: since it began, the group must have had ``offset``, or have moved past it."""
        assert isinstance(commit, tuple), f"no place in the history: {commit}"
        resets, count = commit
        since = self.offsets[key][count - 1 :]
        if resets == self._resets[key] == 0 and max(since) < offset:
            raise Violation(f"offset: {key} was acknowledged at {offset}, but is {self.offset(key)}")
        if min(since) > offset:
            raise Violation(f"offset: {key} was acknowledged at {offset}, but since the commit it was {since}")

    def check_handling(self, member: str, key: Key, offset: int) -> None:
        """Check that a member may handle a message or send it back."""
        group = key[0]
        if group in self._ordered_groups:
            if offset > self._passable[key]:
                raise Violation(f"order: {member} handles {offset} of {key}, but {self._passable[key]} was not handled")
            self._check_own(member, key, "handles a message of")
        self._handled_offsets[key].add(offset)
        while self._passable[key] in self._handled_offsets[key]:
            self._passable[key] += 1

    # -- locks ---------------------------------------------------------------------------------------------------------

    def check_lock(self, member: str, key: Key, since: float) -> None:
        """Check that a member that learns of its lock may have the queue. It sent the lock request at ``since``."""
        self._workload.counts["locks told"] += 1
        self._lock_times[member, key] = since
        if self._now - since < _KEPT_SECONDS:  # a member that slept learns of it late
            self._check_own(member, key, "was told to have")

    def begin_unlock(self, member: str, key: Key) -> None:
        """Record that a member sends an unlock request for a queue."""
        self._lock_times.pop((member, key), None)
        self._unlocks[member, key] += 1

    def end_unlock(self, member: str, key: Key) -> None:
        """Record the response to an unlock request."""
        self._unlocks[member, key] -= 1

    def _check_own(self, member: str, key: Key, what: str) -> None:
        holder, since = self._holders.get(key, ("nobody", 0.0))
        never = float("-inf")
        was_given = self._unlock_times.get((member, key), never) > self._lock_times.get((member, key), never)
        if self._exact and holder != member and not self._unlocks[member, key] and not was_given:
            raise Violation(f"lock: {member} {what} {key}, which {holder} has held for {since:.3f} s")

    def _passes_on(self, key: Key, after: str) -> None:
        """Check that a queue's lock may pass to another member, or to none."""
        holder, _ = self._holders.pop(key, ("", 0.0))
        if not holder or holder == after or not self._exact or self._unlocks[holder, key]:
            return
        since = self._lock_times.get((holder, key), float("-inf"))
        if self._now - since < _KEPT_SECONDS:
            raise Violation(
                f"lock: {key} goes from {holder} to {after or 'nobody'} {self._now - since:.3f} s after its renewal"
            )
        self._workload.counts["locks that ran out"] += 1

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_command(self, command: Any) -> None:
        """Apply a committed metadata command."""
        match command:
            case CommitOffsets():
                for group, topic, queue_id, offset in command.offsets:
                    self._advance((group, topic, queue_id), offset)
            case ResetOffset(restart=False) if command.group in self._groups:
                self._move_back((command.group, command.topic, command.queue_id), command.offset)
            case ResetOffset() if command.group in self._groups:
                self._reset((command.group, command.topic, command.queue_id), command)
            case LockQueues():
                for topic, queue_id in command.queues:
                    key = (command.group, topic, queue_id)
                    self._passes_on(key, command.client_id)
                    self._holders[key] = (command.client_id, self._now)
            case UnlockQueues():
                for topic, queue_id in command.queues:
                    key = (command.group, topic, queue_id)
                    if self._holders.get(key, ("", 0.0))[0] == command.client_id:
                        if self._unlocks[command.client_id, key]:
                            self._unlock_times[command.client_id, key] = self._now
                        self._passes_on(key, "")
            case _:
                pass

    def _advance(self, key: Key, offset: int) -> None:
        if key[0] not in self._groups or offset <= self.offset(key):
            return
        if offset > self._passable[key]:
            raise Violation(f"offset: {key} is committed at {offset}, but {self._passable[key]} was not handled")
        if (target := self._restart_offsets.get(key)) is not None:
            raise Violation(f"reset: {key} is committed at {offset}, but was reset to {target}, where no member began")
        self._check_fence(key, offset)
        self.offsets[key].append(offset)

    def _move_back(self, key: Key, offset: int) -> None:
        """Check the commit of a member that lowered the group's offset."""
        self._workload.counts["offsets moved back"] += 1
        read_from = self._read_from[key]
        is_meant = offset in self._answerable[key] or any(
            each == offset and read_from.get(member, offset + 1) <= offset for member, each in self._commits[key]
        )
        if not is_meant:
            raise Violation(f"offset: {key} goes back to {offset}, but no member that read from there committed it")
        if (target := self._restart_offsets.get(key)) is not None:
            raise Violation(f"reset: {key} goes to {offset}, but was reset to {target}, where no member began")
        if offset > self._passable[key]:
            raise Violation(f"offset: {key} is committed at {offset}, but {self._passable[key]} was not handled")
        self._check_fence(key, offset)
        self.offsets[key].append(offset)

    def _check_fence(self, key: Key, offset: int) -> None:
        """Check that no member moves the offset of a queue that another member holds."""
        if key not in self._holders or not self._exact:
            return
        holder, since = self._holders[key]
        lock_time = max(since, self._lock_times.get((holder, key), 0.0))
        if self._now - lock_time >= _KEPT_SECONDS:
            return
        commits = [(member, at) for member, each, at in self._timed_commits[key] if each == offset]
        if not any(member == holder or at <= since for member, at in commits):
            raise Violation(f"fence: {key} is committed at {offset} by {commits}, {holder} has it since {since:.3f} s")

    def _reset(self, key: Key, command: ResetOffset) -> None:
        self._workload.counts["offsets reset"] += 1
        self._resets[key] += 1
        self.offsets[key].append(command.offset)
        self._passable[key] = max(self._passable[key], command.offset)
        self._restart_offsets.pop(key, None)
        if command.restart and not self._pulls[key, command.offset]:
            self._restart_offsets[key] = command.offset
