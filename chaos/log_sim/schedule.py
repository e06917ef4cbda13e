"""Draws from a seed what happens to a simulated group: its size, settings, faults and their times.

Swarm testing: each seed switches most kinds of faults off, so that rare combinations of the others occur, and draws
small and odd limits, so that every limit is reached.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from chaos.faults import (
    BitFlip,
    ChangeMembers,
    ClockJump,
    Crash,
    CutLink,
    DelayedTransferTarget,
    Depose,
    DiskError,
    DiskRoom,
    DiskSpeed,
    FalseProcessEnd,
    Fault,
    Heal,
    HitNewLeaders,
    Isolation,
    LinkQuality,
    OneWay,
    Partition,
    Pause,
    PausedLeader,
    PowerCut,
    QueueFlip,
    Restart,
    Resume,
    Retention,
    SharedDamage,
    Stall,
    Stop,
    Transfer,
)
from chaos.limits import draw
from raftlog.consensus.types import CoreConfig, NodeId
from raftlog.segment.limits import DEFAULT, TEST_MIN, LogLimits

_NOT_RELAXED = frozenset({"membership", "disk-error", "disk-full", "bit-flip"})
SAFETY_SECONDS = 15.0
"""Length of the part in which anything may fail."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. ``faults`` are pairs of a time and a fault, in order of time.

    The group begins with ``nodes``; ``spares`` run, too, and have not joined. ``priorities`` has one for each of both.
    ``streams`` says how frames travel (`chaos.network`), ``limits`` how small buffers and steps are. In a ``steady``
    run no fault justifies another leader after the first one. ``suspends`` says that a paused node is suspended with
    its machine, so that its monotonic clock stops.
    """

    seed: int
    nodes: tuple[NodeId, ...]
    spares: tuple[NodeId, ...]
    priorities: tuple[int, ...]
    config: CoreConfig
    link_quality: LinkQuality
    clock_rates: tuple[float, ...]
    safety_seconds: float
    proposal_seconds: float
    body_bytes_max: int
    segment_bytes: int
    log_tail_bytes_max: int
    disk_seconds_max: float
    streams: bool
    limits: LogLimits
    kinds: tuple[str, ...]
    faults: tuple[tuple[float, Fault], ...]
    steady: bool = False
    suspends: bool = False


def draw_scenario(seed: int, safety_seconds: float = SAFETY_SECONDS) -> Scenario:
    """Draw the scenario of ``seed``, which stays the same as long as this module is the same."""
    rng = random.Random(seed)
    nodes = tuple(NodeId(f"n{number}") for number in range(rng.choice((1, 3, 3, 3, 3, 3, 5, 5))))
    hunted = rng.random() < 0.4
    kinds = tuple(kind for kind in _KINDS if rng.random() < (0.1 if hunted else 0.3))
    # Unsynced bytes are lost with the power, and unwritten ones with the process. So only one machine may lose either,
    # and it must stay one of several; the others stop cleanly.
    is_relaxed = not hunted and len(nodes) > 1 and rng.random() < 0.12
    forgetful: list[Event] = []
    if is_relaxed:
        kinds = tuple(kind for kind in kinds if kind not in _NOT_RELAXED)
    link_quality = LinkQuality(
        latency_seconds_min=0.0005, latency_seconds_max=rng.choice((0.01, 0.05) if hunted else (0.001, 0.01, 0.05))
    )
    config = draw_config(rng, hunted=hunted)
    spares: tuple[NodeId, ...] = ()
    if "membership" in kinds:
        spares = tuple(NodeId(f"n{len(nodes) + number}") for number in range(rng.choice((1, 1, 2))))
    machines = nodes + spares
    faults = draw_faults(rng, machines, kinds, link_quality, safety_seconds)
    if is_relaxed:
        config = replace(config, durable_commit=False)
        faults = [(at, _soften_crash(fault, nodes[1])) for at, fault in faults]
        forgetful = _forgetful_voter(rng, nodes, 2 * config.election_timeout_seconds_max, safety_seconds)
        faults += forgetful
        faults.sort(key=lambda timed: timed[0])
        kinds += ("forgetful-voter",)
    if "retention" in kinds:
        # All the time, so that a node that was away finds that the files that it needs are dropped.
        faults += drops(rng, nodes, safety_seconds)
        faults.sort(key=lambda timed: timed[0])
    if hunted:
        absence = config.election_timeout_seconds_min * rng.uniform(1.0, 5.0)
        faults.insert(0, (0.0, HitNewLeaders(rng.choice((0.02, 0.1, 0.3)), absence, crash=rng.random() < 0.8)))
        kinds += ("ambush",)
    segment_bytes = rng.choice((512, 1024, 4096, 4096, 16 * 1024, 64 * 1024))
    scenario = Scenario(
        seed=seed,
        nodes=nodes,
        spares=spares,
        priorities=tuple(rng.choice((0, 0, 0, 1, 2)) if "transfer" in kinds else 0 for _ in machines),
        config=config,
        link_quality=link_quality,
        clock_rates=tuple(rng.choice((1.0, 1.0, 0.95, 1.05)) for _ in machines),
        safety_seconds=safety_seconds,
        proposal_seconds=rng.choice((0.02, 0.1, 0.1, 0.5)),
        body_bytes_max=min(rng.choice((20, 100, 100, 1000)), segment_bytes // 3),
        segment_bytes=segment_bytes,
        log_tail_bytes_max=rng.choice((1, 500, 5000, 32 * 1024 * 1024)),
        disk_seconds_max=rng.choice((0.0005, 0.005, 0.005, 0.02)) if config.durable_commit else 0.4,
        streams=not hunted and rng.random() < 0.6,
        limits=draw_limits(rng, seed),
        kinds=kinds,
        faults=tuple(faults),
    )
    # Drawn last, so that earlier draws stay the same.
    more: list[Event] = []
    if is_relaxed and rng.random() < 0.5:
        faults = [fault for fault in faults if fault not in forgetful]
        more += _late_successors(rng, nodes[1], 4 * config.election_timeout_seconds_max, safety_seconds)
    if "membership" in kinds and rng.random() < 0.5:
        more += _disputed_changes(rng, 2 * config.election_timeout_seconds_max, safety_seconds)
    if "depose" in kinds and rng.random() < 0.5:
        more += [(rng.uniform(1.0, safety_seconds), PausedLeader()) for _ in range(rng.randint(2, 5))]
    if "disk-error" in kinds and rng.random() < 0.7:
        more += _failed_syncs(rng, machines, safety_seconds)
    host = random.Random(f"{seed} host")
    if host.random() < 0.25:
        # A few stalls of all lengths.
        for _ in range(host.randint(1, 6)):
            stall = Stall(host.choice((None, *nodes)) if len(nodes) > 1 else nodes[0], 0.01 * 3000 ** host.random())
            more.append((host.uniform(0.0, safety_seconds), stall))
        scenario = replace(scenario, kinds=(*scenario.kinds, "stall"))
    lease = random.Random(f"{seed} leases")
    if len(nodes) > 1 and not is_relaxed and lease.random() < 0.2:
        # Leases rely on clocks of about equal speed: no clock jumps, and their speeds differ as usual.
        faults = [(at, fault) for at, fault in faults if not isinstance(fault, ClockJump)]
        more += [(lease.uniform(1.0, safety_seconds), PausedLeader()) for _ in range(lease.randint(2, 6))]
        scenario = replace(
            scenario,
            config=replace(config, lease_reads=True),
            kinds=(*scenario.kinds, "leases"),
            suspends=lease.random() < 0.6,
        )
    damage = random.Random(f"{seed} shared damage")
    if not is_relaxed and not spares and len(nodes) > 1 and damage.random() < 0.12:
        # Late, since nothing is committed for some seconds then.
        at = safety_seconds * damage.uniform(0.2, 0.7)
        more.append((at, SharedDamage(damage.random(), damage.random() < 0.6, damage.uniform(3.0, 8.0))))
        scenario = replace(scenario, kinds=(*scenario.kinds, "shared-damage"))
    return replace(scenario, faults=tuple(sorted((*faults, *more), key=lambda timed: timed[0]))) if more else scenario


def draw_config(
    rng: random.Random, *, hunted: bool, uncommitted_bytes_max: tuple[int, ...] = (500, 64 * 1024 * 1024)
) -> CoreConfig:
    """Draw the settings of a group. With ``hunted``, leaders are hit soon after their election."""
    patience = 0.3 if hunted else rng.choice((0.3, 0.5, 1.5))
    # One entry per message: only so do entries of an older term travel without the one that opens the new term.
    append_bytes_max = rng.choice((1, 1, 1, 150) if hunted else (1, 150, 1000, 256 * 1024))
    inflight_bytes_max = append_bytes_max * rng.choice((1, 4, 1024))
    catch_up_bytes_max = rng.choice((400, 2 * 1024 * 1024))
    accept_ack_bytes = rng.choice((0, 300, 1024 * 1024))
    return CoreConfig(
        heartbeat_seconds=patience / 8,
        announce_seconds=rng.choice((0.0, 0.005, 0.03)),
        election_timeout_seconds_min=patience,
        election_timeout_seconds_max=patience * 2,
        vote_retry_seconds_min=patience / 8,
        vote_retry_seconds_max=patience / 3,
        append_bytes_max=append_bytes_max,
        inflight_messages_max=rng.choice((1, 3, 256)),
        inflight_bytes_max=inflight_bytes_max,
        uncommitted_bytes_max=rng.choice(uncommitted_bytes_max),
        accept_ack_bytes=min(accept_ack_bytes, inflight_bytes_max - 1, catch_up_bytes_max - 1),
        tail_bytes_max=rng.choice((1, 1000, 64 * 1024 * 1024)),
        tail_spans_max=rng.choice((1, 10, 65_536)),
        catch_up_bytes_max=catch_up_bytes_max,
        install_entries_min=rng.choice((4096, 4096, 20, 3)),
    )


def _soften_crash(fault: Fault, victim: NodeId) -> Fault:
    return Stop(fault.node) if isinstance(fault, PowerCut | Crash) and fault.node != victim else fault


def drops(rng: random.Random, nodes: Sequence[NodeId], seconds: float) -> list[Event]:
    """Draw times at which random nodes drop log files."""
    faults: list[Event] = []
    at = rng.uniform(0.5, 2.0)
    while at < seconds:
        faults.append((at, Retention(rng.choice(nodes), rng.choice((1.0, rng.random())))))
        at += rng.expovariate(3.0)
    return faults


def _forgetful_voter(rng: random.Random, nodes: Sequence[NodeId], patience: float, seconds: float) -> list[Event]:
    """Draw repeated faults: one node misses an entry, another one forgets it, and the others are away."""
    faults: list[Event] = []
    end_of: type[PowerCut | Crash] = PowerCut
    other: type[PowerCut | Crash] = Crash
    start = rng.uniform(0.5, 2.0)
    while start < seconds - patience:
        victim, late = nodes[1], rng.choice([node for node in nodes if node != nodes[1]])
        away = [node for node in nodes if node not in (victim, late)]
        # In turns, since a killed process loses unwritten bytes, and a machine unsynced ones.
        end_of, other = other, end_of
        faults += [(start + 0.2, Isolation(late)), (start + 0.3, end_of(victim)), (start + 0.35, Restart(victim))]
        faults += [
            (start + 0.3, Heal()),
            (start + 0.3, Partition(((victim, late), tuple(away)))),
            (start + 0.3 + patience, Heal()),
        ]
        start += patience + rng.uniform(1.0, 3.0)
    return faults


def _late_successors(rng: random.Random, victim: NodeId, patience: float, seconds: float) -> list[Event]:
    """Draw repeated faults: when the forgetful node is back, it must not elect another leader on a leader's word."""
    faults: list[Event] = []
    at = rng.uniform(1.0, 2.0)
    while at < seconds - patience:
        faults += [(at, DelayedTransferTarget(victim)), (at + patience, Heal())]
        at += patience + rng.uniform(0.5, 2.0)
    return faults


def _failed_syncs(rng: random.Random, nodes: Sequence[NodeId], seconds: float) -> list[Event]:
    """Draw repeated faults: a sync fails, the process restarts, and a while later the machine loses power."""
    faults: list[Event] = []
    at = rng.uniform(0.5, 2.0)
    while at < seconds:
        node = rng.choice(nodes)
        faults += [(at + rng.uniform(0.0, 0.2), DiskError(node, "fdatasync", errno.EIO)) for _ in range(2)]
        cut = at + rng.uniform(0.3, 3.0)
        faults += [(cut, PowerCut(node)), (cut + rng.uniform(0.0, 0.5), Restart(node))]
        at += rng.uniform(1.0, 4.0)
    return faults


def _disputed_changes(rng: random.Random, patience: float, seconds: float) -> list[Event]:
    """Draw times at which a cut-off leader accepts a membership change, which the next leader truncates."""
    faults: list[Event] = []
    at = rng.uniform(1.0, 4.0)
    while at < seconds - patience:
        faults += [(at, Depose()), (at, ChangeMembers(rng.random())), (at + patience, Heal())]
        at += patience + rng.uniform(2.0, 6.0)
    return faults


def draw_limits(rng: random.Random, seed: int) -> LogLimits:
    """Draw limits of the log, most of them small."""
    # Drawn separately, so that earlier draws stay the same.
    others = draw(random.Random(f"{seed} log limits"), TEST_MIN, DEFAULT)
    values = {
        "apply_bytes_max": rng.choice((1, 500, 1024 * 1024)),
        "unsynced_bytes_max": rng.choice((2000, 64 * 1024 * 1024)),
        "anchor_bytes": rng.choice((200, 64 * 1024)),
        "sync_bytes_max": rng.choice((600, 4096, 1024 * 1024)),
    }
    return replace(
        others, **{name: value if rng.random() < 0.7 else getattr(DEFAULT, name) for name, value in values.items()}
    )


Event = tuple[float, Fault]


def draw_faults(
    rng: random.Random, nodes: Sequence[NodeId], kinds: Sequence[str], calm: LinkQuality, seconds: float
) -> list[Event]:
    """Draw periods of up to three seconds, a quarter of them without faults. Damage may outlast its period."""
    faults: list[Event] = []
    start = rng.uniform(0.0, 2.0)
    while kinds and start < seconds:
        end = min(start + rng.uniform(0.3, 3.0), seconds)
        if rng.random() < 0.75:
            faults += _KINDS[rng.choice(kinds)](rng, nodes, calm, start, end)
        if rng.random() < 0.7:
            faults.append((end, Heal()))
        start = end
    return sorted(faults, key=lambda timed: timed[0])


def _partition(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    order = rng.sample(nodes, len(nodes))
    cut = rng.randint(1, max(1, len(nodes) - 1))
    return [(begin, Partition((tuple(order[:cut]), tuple(order[cut:]))))]


def _one_way(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    return [(begin, OneWay(*rng.sample(nodes, 2)))] if len(nodes) > 1 else []


def _cut_link(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    return [(begin, CutLink(*rng.sample(nodes, 2)))] if len(nodes) > 1 else []


def _deaf(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    return [(begin, Isolation(rng.choice(nodes)))]


def _link_quality(
    rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float
) -> list[Event]:
    storm = LinkQuality(
        loss=rng.choice((0.0, 0.05, 0.3)),
        duplication=rng.choice((0.0, 0.1, 0.5)),
        garbling=rng.choice((0.0, 0.0, 0.02)),
        latency_seconds_min=0.0005,
        latency_seconds_max=rng.choice((0.005, 0.1, 0.8)),
    )
    return [(begin, storm), (end, calm)]


def _crash(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    faults: list[Event] = []
    for _ in range(rng.randint(1, 3)):
        node = rng.choice(nodes)
        at = rng.uniform(begin, end)
        end_of = rng.choice((Crash, PowerCut, PowerCut, Stop))
        faults += [(at, end_of(node)), (at + rng.choice((0.0, 0.05, 1.0, 3.0)), Restart(node))]
    return faults


def _crash_all(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    restarts: list[Event] = [(rng.uniform(begin, end), Restart(node)) for node in nodes]
    end_of = rng.choice((Crash, PowerCut, PowerCut))
    return [*((begin, end_of(node)) for node in nodes), *restarts]


def _pause(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    node = rng.choice(nodes)
    return [(begin, Pause(node)), (end, Resume(node))]


def _clock(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    jumps = rng.randint(1, 3)
    return [(rng.uniform(begin, end), ClockJump(rng.choice(nodes), rng.choice((0.1, 1.0, 30.0)))) for _ in range(jumps)]


def _disk_error(
    rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float
) -> list[Event]:
    operation = rng.choice(("fdatasync", "pwritev", "pread", "rename", "sync_directory", "unlink"))
    number = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC))
    return [(begin, DiskError(rng.choice(nodes), operation, number))]


def _disk_full(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    node = rng.choice(nodes)
    return [(begin, DiskRoom(node, rng.choice((0, 1000, 20_000)))), (end, DiskRoom(node, None))]


def _slow_disk(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    node = rng.choice(nodes)
    return [(begin, DiskSpeed(node, rng.choice((0.05, 0.5, 3.0)))), (end, DiskSpeed(node, 0.005))]


def _bit_flip(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    # Always the same node of a run, so that its entries are intact elsewhere.
    victim = nodes[1 % len(nodes)]
    if len(nodes) < 3:
        return []
    times = [rng.uniform(begin, end) for _ in range(rng.randint(1, 3))]
    flips: list[Event] = [(at, BitFlip(victim, rng.choice((1.0, rng.random())))) for at in times]
    return [*flips, (end, rng.choice((Crash, PowerCut, Stop))(victim)), (end + rng.uniform(0.0, 0.5), Restart(victim))]


def bit_rot(rng: random.Random, nodes: Sequence[NodeId], seconds: float) -> list[Event]:
    """Draw bit flips of old entries on the disks of a minority. No other fault makes a node read them."""
    victims = nodes[1 : 1 + (len(nodes) - 1) // 2]
    times = [rng.uniform(1.0, seconds) for _ in range(rng.randint(3, 20))] if victims else []
    return [(at, BitFlip(rng.choice(victims), rng.uniform(0.1, 0.9))) for at in sorted(times)]


def queue_rot(rng: random.Random, nodes: Sequence[NodeId], seconds: float) -> list[Event]:
    """Draw bit flips of consume queue files, while the broker runs or is down for a moment."""
    faults: list[Event] = []
    for _ in range(rng.randint(2, 6)):
        at, node = rng.uniform(1.0, seconds - 1.0), rng.choice(nodes)
        faults += [(at + rng.uniform(0.0, 0.2), QueueFlip(node, rng.random())) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.6:
            # A process keeps verified entries in memory, so mostly the next one detects the damage.
            faults += [(at, rng.choice((Crash, Stop))(node)), (at + rng.uniform(0.2, 0.5), Restart(node))]
    return faults


def _membership(
    rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float
) -> list[Event]:
    return [(rng.uniform(begin, end), ChangeMembers(rng.random())) for _ in range(rng.randint(2, 8))]


def _transfer(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    times = [rng.uniform(begin, end) for _ in range(rng.randint(1, 4))]
    return [(at, Transfer(rng.choice((None, *nodes)))) for at in times]


def _retention(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    times = [rng.uniform(begin, end) for _ in range(rng.randint(1, 6))]
    return [(at, Retention(rng.choice(nodes), rng.random())) for at in times]


def _depose(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    return [(begin, Depose())]


def _rumors(rng: random.Random, nodes: Sequence[NodeId], calm: LinkQuality, begin: float, end: float) -> list[Event]:
    return [
        (rng.uniform(begin, end), FalseProcessEnd(rng.choice(nodes), rng.choice(nodes)))
        for _ in range(rng.randint(1, 6))
    ]


_KINDS: dict[str, Callable[[random.Random, Sequence[NodeId], LinkQuality, float, float], list[Event]]] = {
    "partition": _partition,
    "one-way": _one_way,
    "cut-link": _cut_link,
    "deaf": _deaf,
    "link-quality": _link_quality,
    "crash": _crash,
    "crash-all": _crash_all,
    "pause": _pause,
    "depose": _depose,
    "bit-flip": _bit_flip,
    "membership": _membership,
    "transfer": _transfer,
    "retention": _retention,
    "clock": _clock,
    "disk-error": _disk_error,
    "disk-full": _disk_full,
    "slow-disk": _slow_disk,
    "rumors": _rumors,
}
