"""`raftmq mirror cut-over`: checks that nothing is behind, and moves the offsets of consumer groups."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from mq.cli.errors import EXIT_FAILED, CommandFailed, lone_errors
from mq.cli.mirror.clusters import ClusterAdmin
from mq.cli.mirror.copier import LOOKS_MAX, Copier
from mq.cli.mirror.offsets import Move, moves
from mq.cli.mirror.plan import Choice
from mq.cli.mirror.setup import Say, extend_mirror, is_system_group
from mq.cli.mirror.state import MirroredQueue, MirrorState
from mq.client.errors import BrokerError, ClientError
from mq.client.message import MessageQueue
from mq.client.net.replies import read_body
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage
from mq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC
from mq.protocol.requests.clients import ConsumerGroupExt, ConsumerList

POLL_SECONDS: Final = 0.1
_FROM_DELAYS: Final = (props.REAL_TOPIC, props.TIMER_OUT_MS, props.RETRY_TOPIC)
"""Properties of messages that the source's brokers wrote by themselves, not a producer just now."""


@dataclass
class CutOverReport:
    """The changes that a cut-over has made, or would make.

    Attributes:
        moves: the offsets that were, or would be, stored.
        useless_moves: offsets that were not stored, because the group was beyond them already.
        waiting_count: how many delayed messages still wait at the source; None if it does not tell.
    """

    moves: list[Move] = field(default_factory=list)
    useless_moves: list[Move] = field(default_factory=list)
    copied_count: int = 0
    waiting_count: int | None = 0

    @property
    def groups(self) -> dict[str, list[Move]]:
        """All moves by group."""
        moves: dict[str, list[Move]] = {}
        for move in (*self.moves, *self.useless_moves):
            moves.setdefault(move.group, []).append(move)
        return dict(sorted(moves.items()))


async def cut_over(
    source: ClusterAdmin,
    target: ClusterAdmin,
    state: MirrorState,
    path: Path,
    *,
    groups: Choice,
    quiet_seconds: float,
    producers_run: bool,
    dry_run: bool,
    say: Say = lambda _: None,
    looks_max: int = LOOKS_MAX,
) -> CutOverReport:
    """Copy the remaining messages, and move the offsets of these groups. ``looks_max`` is as in `Copier`.

    Raises CommandFailed if it is too early; ClientError.
    """
    offsets = _offsets_to_move(await source.group_offsets(), state.queues, groups)
    await _check_stopped(source, offsets, "the source")
    await _check_stopped(target, offsets, "the target")
    report = CutOverReport()
    report.copied_count = await _finish_copying(
        source,
        target,
        state,
        path,
        offsets,
        quiet_seconds=quiet_seconds,
        producers_run=producers_run,
        say=say,
        looks_max=looks_max,
    )
    # Consumers that stopped a moment ago have stored their last offsets by now.
    offsets = _offsets_to_move(await source.group_offsets(), state.queues, groups)
    await _check_stopped(source, offsets, "the source")
    await _move(target, state.queues, offsets, report, back=False, dry_run=dry_run)
    report.waiting_count = await waiting_delays(source)
    return report


async def go_back(
    source: ClusterAdmin, target: ClusterAdmin, state: MirrorState, *, groups: Choice, dry_run: bool
) -> CutOverReport:
    """Store the progress of groups at the target as their offsets at the source. Raises CommandFailed, ClientError."""
    queues = state.queues
    offsets = _offsets_to_move(await target.group_offsets(), queues, groups, back=True)
    await _check_stopped(target, offsets, "the target")
    await _check_stopped(source, offsets, "the source")
    report = CutOverReport()
    await _move(source, queues, offsets, report, back=True, dry_run=dry_run)
    return report


def _offsets_to_move(
    offsets: Mapping[str, Mapping[MessageQueue, int]],
    queues: Sequence[MirroredQueue],
    groups: Choice,
    *,
    back: bool = False,
) -> dict[str, Mapping[MessageQueue, int]]:
    """The offsets of groups that are to be moved, and have some in mirrored queues."""
    return {
        group: mine
        for group, mine in sorted(offsets.items())
        if groups.takes(group) and not is_system_group(group) and moves(queues, group, mine, back=back)
    }


async def _check_stopped(admin: ClusterAdmin, groups: Mapping[str, object], where: str) -> None:
    members = {group: await _members(admin, group) for group in groups}
    busy_groups = [f"{group} ({', '.join(names)})" for group, names in members.items() if names]
    if busy_groups:
        raise CommandFailed(
            f"consumers run at {where}, whose progress would be lost: stop those of {'; '.join(busy_groups)}, or move "
            "other groups only, with --groups",
            EXIT_FAILED,
        )


async def _members(admin: ClusterAdmin, group: str) -> list[str]:
    """The client ids of a group's members, at any broker group."""
    client_ids: set[str] = set()
    for address in (await admin.leaders()).values():
        try:
            ext = ConsumerGroupExt(consumer_group=group)
            _, body = await admin.core.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext.fields())
        except BrokerError as error:
            if error.code == ResponseCode.SYSTEM_ERROR:  # the answer for a group without members
                continue
            raise
        client_ids.update(read_body(ConsumerList.decode, body).consumer_ids)
    return sorted(client_ids)


async def _finish_copying(
    source: ClusterAdmin,
    target: ClusterAdmin,
    state: MirrorState,
    path: Path,
    offsets: Mapping[str, Mapping[MessageQueue, int]],
    *,
    quiet_seconds: float,
    producers_run: bool,
    say: Say,
    looks_max: int,
) -> int:
    """Copy until nothing is behind for a while; returns how many messages that were. Raises CommandFailed.

    ``say`` gets why it has to wait. With ``producers_run`` only the consumed messages of the groups must be copied.
    """
    new_counts: Counter[str] = Counter()

    def count_copies(queue: MirroredQueue, messages: list[StoredMessage]) -> None:
        new_counts[queue.topic] += sum(not any(name in each.properties for name in _FROM_DELAYS) for each in messages)

    copier = Copier(source, target, state, path, on_copy=count_copies, looks_max=looks_max)
    extension = await extend_mirror(source, target, state, Choice(state.wanted, state.unwanted), lambda _: None)
    if extension.queues:
        copier.on_state_change()
        copier.save()
    if extension.refusals:
        raise CommandFailed("; ".join(extension.refusals.values()), EXIT_FAILED)
    copier.unreadable_queues = extension.unreadable_queues
    quiet_since: float | None = None
    texts_shown: set[str] = set()

    def is_enough() -> bool:
        if not producers_run:
            return copier.behind == 0
        return all(
            copier.is_over(queue) or copier.has_copied(queue, furthest.get(str(queue), 0)) for queue in state.queues
        )

    furthest: dict[str, int] = {}
    for queue in state.queues:
        place = MessageQueue(queue.topic, queue.broker, queue.queue_id)
        furthest[str(queue)] = max((mine.get(place, 0) for mine in offsets.values()), default=0)
    async with lone_errors(), trio.open_nursery() as nursery:
        nursery.start_soon(copier.save_forever)
        for queue in state.queues:
            copier.start(queue, nursery)
        while quiet_since is None or trio.current_time() < quiet_since + quiet_seconds or not is_enough():
            await trio.sleep(POLL_SECONDS)
            if copier.block_reasons:
                raise CommandFailed("; ".join(copier.block_reasons.values()), EXIT_FAILED)
            for text in {*copier.troubles.values()} - texts_shown:
                texts_shown.add(text)
                say(f"waiting: {text}")
            if quiet_since is None:
                if is_enough():
                    quiet_since = trio.current_time()
                    new_counts.clear()
            elif not producers_run and +new_counts:
                topics = ", ".join(f"{topic} ({count})" for topic, count in sorted((+new_counts).items()))
                raise CommandFailed(
                    f"producers still send to the source: {topics}. Stop them first, or pass --producers-run and let "
                    "the mirror go on after the cut-over",
                    EXIT_FAILED,
                )
        nursery.cancel_scope.cancel()
    return copier.copied_count


async def _move(
    admin: ClusterAdmin,
    queues: Sequence[MirroredQueue],
    offsets: Mapping[str, Mapping[MessageQueue, int]],
    report: CutOverReport,
    *,
    back: bool,
    dry_run: bool,
) -> None:
    there = await admin.group_offsets()
    for group, mine in offsets.items():
        for move in moves(queues, group, mine, back=back):
            if there.get(group, {}).get(move.goal, -1) > move.goal_offset and not back:
                report.useless_moves.append(move)
                continue
            if not dry_run:
                await admin.store_offset(group, move.goal, move.goal_offset)
            report.moves.append(move)


async def waiting_delays(source: ClusterAdmin) -> int | None:
    """Return how many delayed messages and retries still wait at the source; None if the source does not tell."""
    total = 0
    try:
        for broker, address in (await source.leaders()).items():
            figures = await source.broker_runtime(address)
            if "raftmq.role" in figures:
                total += int(figures.get("raftmq.delayedPending", "0"))
                total += int(figures.get("raftmq.timersPending", "0"))
                continue
            for level, offset in (await source.delay_offsets(address)).items():
                queue = MessageQueue(SCHEDULE_TOPIC, broker, level - 1)
                total += max((await source.pull(queue, offset, count_max=1)).end - offset, 0)
            total += await _waiting_timers(source, broker)
    except ClientError:
        return None
    return total


async def _waiting_timers(source: ClusterAdmin, broker: str) -> int:
    """Timed messages of RocketMQ 5 that are not due yet."""
    if TIMER_TOPIC not in await source.topics():
        return 0
    queue = MessageQueue(TIMER_TOPIC, broker, 0)
    edges = await source.pull(queue, 0, count_max=1)
    now_ms = int(time.time() * 1000)
    timers: set[tuple[str, str, int]] = set()
    async for messages in source.read(queue, edges.begin, edges.end):
        for each in messages:
            due = each.properties.get(props.TIMER_OUT_MS, "")
            if due.isdecimal() and int(due) > now_ms:
                timers.add((each.properties.get(props.UNIQUE_KEY, ""), due, each.born_timestamp_ms))
    return len(timers)


def instructions(report: CutOverReport, source: str, target: str, *, dry_run: bool) -> list[str]:
    """Return the lines that tell the team of each group, and those of producers, what to do."""
    lines: list[str] = []
    for group, rows in report.groups.items():
        topics = sorted({move.origin.topic for move in rows if not move.origin.topic.startswith("%")})
        lines.append(
            f"consumers of {group} ({', '.join(topics) or 'retries only'}): {'would be' if dry_run else ''} moved in "
            f"{len(rows)} queues. Set their name server to {target}, and start them.".replace("  ", " ")
        )
    if not report.groups:
        lines.append("no consumer group has offsets in the mirrored topics")
    lines.append(f"producers: set their name server to {target}, and start them.")
    if report.waiting_count is None:
        lines.append(
            "The source does not tell how many delayed messages wait: let it and `raftmq mirror` run until all are due."
        )
    elif report.waiting_count:
        lines.append(
            f"{report.waiting_count:,} delayed messages and retries wait at the source: let it and `raftmq mirror` run "
            "until they were delivered; they arrive at the target then."
        )
    else:
        lines.append("No delayed message waits at the source: it can be stopped when all have changed over.")
    lines.append(
        f"The way back: stop the consumers, run this command with --back, and start them with {source}. Messages that "
        "were sent to the target only stay there."
    )
    return lines


def back_lines(report: CutOverReport, source: str) -> list[str]:
    """Return the lines that tell how to go back from the target to the source."""
    return [
        f"consumers of {group}: moved back in {len(rows)} queues. Set their name server to {source}, and start them."
        for group, rows in report.groups.items()
    ] or ["no consumer group has offsets in the mirrored topics at the target"]
