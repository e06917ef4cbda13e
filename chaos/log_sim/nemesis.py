"""Injects the faults of a schedule, and counts those that took effect: a fault without effect tests nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

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
    WallStep,
)
from chaos.log_sim.group import Group
from chaos.log_sim.node import DIRECTORY, Node, Process
from chaos.log_sim.shared_damage import damage_all
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import ConfChange, ConfChangeKind, NodeId, Refusal, Role
from raftlog.log_numbers import NO_INDEX

_VOTERS_IF_DAMAGED = 3
"""The least number of voters if logs may be damaged: of two voters neither can be elected without the other, which may
have lost something and then does not vote before there is a leader.
"""


def _has_sent_everything(leader: RaftCore, peer: NodeId) -> bool:
    """Return whether ``peer`` has the whole log of a leader, and all of it is committed."""
    status = leader.status()
    return status.commit == status.last.index and any(p.peer == peer and p.match == status.commit for p in status.peers)


class Nemesis:
    """Injects faults. ``injected`` and ``effective`` count them by class name."""

    def __init__(self, cluster: Group) -> None:
        self._cluster = cluster
        self._rng: random.Random = cluster.rng
        self._ambush: HitNewLeaders | None = None
        self._faulty_disks: set[NodeId] = set()
        self._cuts: list[tuple[str, int]] = []
        self.injected: Counter[str] = Counter()
        self.effective: Counter[str] = Counter()

    def may_fail(self, node_id: NodeId) -> bool:
        """Whether the disk of a node was made to fail, so that its process may end."""
        return node_id in self._faulty_disks

    def strike(self, fault: Fault) -> None:
        """Inject a fault, and count whether it took effect."""
        name = type(fault).__name__
        self.injected[name] += 1
        if self._carry_out(fault):
            self.effective[name] += 1

    def on_election(self, node: Node) -> None:
        """Schedule a fault for a node that was elected, if `HitNewLeaders` is in effect."""
        ambush, cluster = self._ambush, self._cluster
        if ambush is None or cluster.is_healed:
            return
        at = cluster.now + self._rng.uniform(0.0, ambush.delay_seconds_max)
        back = at + ambush.absence_seconds
        hit: Fault = PowerCut(node.node_id) if ambush.crash else Isolation(node.node_id)
        cluster.at(at, self._unless_healed, lambda: self.strike(hit))
        cluster.at(back, self._unless_healed, lambda: self._recover(node))

    def _recover(self, node: Node) -> None:
        self._cluster.network.reconnect(node.node_id)
        self._cluster.wires.release_stuck()
        self._cluster.restart(node)

    def _unless_healed(self, step: Callable[[], None]) -> None:
        if not self._cluster.is_healed:
            step()

    def end(self, node: Node, *, power_cut: bool) -> bool:
        """Kill a node's process, and soon tell some other nodes. Return False if the process did not run."""
        cluster = self._cluster
        if node.process is None:
            if power_cut:
                node.kill(power_cut=True)
            return False
        node.kill(power_cut=power_cut)
        cluster.paused.pop(node.node_id, None)
        cluster.wires.break_connections(node.node_id)
        for other in cluster.nodes.values():
            is_reachable = cluster.network.connected(node.node_id, other.node_id)
            if other is not node and is_reachable and self._rng.random() < 0.5:
                rumor = FalseProcessEnd(other.node_id, node.node_id)
                cluster.at(cluster.now + self._rng.uniform(0.0, 0.02), self._spread_rumor, rumor)
        return True

    def heal(self, fault: Heal) -> None:
        """End all faults, also those of disks."""
        cluster = self._cluster
        self._ambush = None
        self.strike(fault)
        self.strike(cluster.scenario.link_quality)
        for node in cluster.nodes.values():
            node.disk.clear_faults()
            node.disk_seconds_max = cluster.scenario.disk_seconds_max
        cluster.wires.release_stuck()

    def _carry_out(self, fault: Fault) -> bool:
        cluster = self._cluster
        match fault:
            case Crash(node_id):
                return self.end(cluster.nodes[node_id], power_cut=False)
            case PowerCut(node_id):
                return self.end(cluster.nodes[node_id], power_cut=True)
            case Stop(node_id):
                return self._stop(cluster.nodes[node_id])
            case Restart(node_id):
                down = cluster.nodes[node_id].process is None
                cluster.restart(cluster.nodes[node_id])
                return down
            case Pause(node_id):
                cluster.paused.setdefault(node_id, [])
                if cluster.scenario.suspends:
                    cluster.nodes[node_id].suspend()
                return cluster.nodes[node_id].process is not None
            case Resume(node_id):
                is_held = bool(cluster.paused.get(node_id))
                cluster.resume(node_id)
                return is_held
            case Stall(node_id, seconds):
                return self._stall(node_id, seconds)
            case ClockJump(node_id, seconds):
                cluster.nodes[node_id].leap(seconds)
                return cluster.nodes[node_id].process is not None
            case WallStep(node_id, ahead_ms):
                changed = cluster.nodes[node_id].wall_ahead_ms != ahead_ms
                cluster.nodes[node_id].wall_ahead_ms = ahead_ms
                return changed
            case DiskError(node_id, operation, number):
                self._faulty_disks.add(node_id)
                cluster.nodes[node_id].disk.fail(operation, number)
                return True
            case DiskRoom(node_id, nbytes):
                disk = cluster.nodes[node_id].disk
                self._faulty_disks.add(node_id)
                disk.capacity_bytes = None if nbytes is None else disk.used_bytes + nbytes
                return True
            case DiskSpeed(node_id, seconds_max):
                cluster.nodes[node_id].disk_seconds_max = seconds_max
                return True
            case BitFlip(node_id, place):
                return self._flip(cluster.nodes[node_id], place)
            case SharedDamage():
                self._damage_all(fault)
                return False
            case QueueFlip(node_id, place):
                return cluster.flip_derived(cluster.nodes[node_id], place)
            case ChangeMembers(choice):
                return self._change_members(choice)
            case Transfer(to):
                return self._ask_leader(lambda leader: leader.replica.transfer(to) is None)
            case Retention(node_id, share):
                return self._drop_files(cluster.nodes[node_id], share)
            case Depose():
                return self._depose()
            case PausedLeader():
                self._pause_leader()
                return False
            case DelayedTransferTarget(victim):
                self._delay_transfer(cluster.nodes[victim])
                return False
            case FalseProcessEnd():
                return self._spread_rumor(fault)
            case HitNewLeaders():
                self._ambush = fault
                return True
            case Partition() | OneWay() | CutLink() | Isolation():
                self._cuts.append((type(fault).__name__, cluster.wires.blocked_frames))
                cluster.network.disturb(fault)
                return False
            case Heal():
                cluster.network.disturb(fault)
                cluster.wires.release_stuck()
                cuts, self._cuts = self._cuts, []
                for name, blocked_before in cuts:
                    self.effective[name] += cluster.wires.blocked_frames > blocked_before
                return bool(cuts)
            case LinkQuality():
                cluster.network.disturb(fault)
                return True

    def _stall(self, node_id: NodeId | None, seconds: float) -> bool:
        cluster = self._cluster
        if node_id is None:
            leader = self._newest_leader()
            node_id = self._rng.choice([node for node in cluster.nodes if node != leader])
        node = cluster.nodes[node_id]
        if node.process is None or node.node_id in cluster.paused:
            return False
        calls: list[Callable[[], None]] = []
        cluster.paused[node.node_id] = calls

        def resume() -> None:
            # Unless it was resumed, or killed, and paused again.
            if cluster.paused.get(node.node_id) is calls:
                cluster.resume(node.node_id)

        cluster.at(cluster.now + seconds, resume)
        return True

    def _flip(self, node: Node, fraction: float) -> bool:
        if node.repair is not None or self._voters_min < _VOTERS_IF_DAMAGED:
            return False
        names = [name for name in node.disk.names(DIRECTORY) if name.isdigit()]
        # Damage behind the mark is indistinguishable from a torn write.
        limit = node.marked_pos()
        contents = [(name, node.disk.content(f"{DIRECTORY}/{name}")[: max(0, limit - int(name))]) for name in names]
        sizes = [(name, len(content.rstrip(b"\0"))) for name, content in contents]
        at = max(0, int(fraction * sum(nbytes for _, nbytes in sizes)) - 1 - self._rng.randrange(60))
        for name, nbytes in sizes:
            if at < nbytes:
                if len(node.disk.durable(f"{DIRECTORY}/{name}", at, 1)) < 1:
                    return False
                if self._copies(int(name) + at, node) < 2:
                    return False
                node.disk.flip_bit(f"{DIRECTORY}/{name}", at, self._rng.randrange(8))
                node.flips.append(int(name) + at)
                return True
            at -= nbytes
        return False

    def _damage_all(self, fault: SharedDamage) -> None:
        cluster = self._cluster
        if cluster.now + fault.absence_seconds > cluster.scenario.safety_seconds:
            return
        if damage_all(cluster, fault, self._rng):
            self.effective[SharedDamage.__name__] += 1
        else:
            cluster.at(cluster.now + 0.1, self._damage_all, fault)

    @property
    def _voters_min(self) -> int:
        """The smallest number of voters in any configuration in use that has voters."""
        confs = [node.process.core.conf for node in self._cluster.nodes.values() if node.process is not None]
        return min((len(voters) for conf in confs for voters in (conf.voters, conf.outgoing) if voters), default=0)

    def _copies(self, pos: int, but: Node) -> int:
        """Return how many other processes have the byte at ``pos`` of the log on disk."""
        logs = [
            node.process.log for node in self._cluster.nodes.values() if node.process is not None and node is not but
        ]
        return sum(log.base_pos <= pos < log.durable_pos for log in logs)

    def _ask_leader(self, ask: Callable[[Process], bool]) -> bool:
        """Send a request to a running leader. Return whether the leader accepted it."""
        cluster = self._cluster
        processes = [node.process for node in cluster.nodes.values() if node.node_id not in cluster.paused]
        leaders = [process for process in processes if process is not None and process.core.role is Role.LEADER]
        if not leaders:
            return False
        leader = self._rng.choice(leaders)
        is_accepted = False

        def step() -> None:
            nonlocal is_accepted
            is_accepted = ask(leader)

        cluster.on(leader.node, "is asked by an operator", step)
        return is_accepted

    def _change_members(self, choice: float) -> bool:
        def ask(leader: Process) -> bool:
            conf = leader.core.conf
            has_damage = any(node.flips for node in self._cluster.nodes.values())
            voters = conf.voters if has_damage and len(conf.voters) <= _VOTERS_IF_DAMAGED else ()
            removable = (node for node in (*conf.voters, *conf.learners) if node not in voters)
            changes = [ConfChange(ConfChangeKind.REMOVE, node) for node in removable]
            for node in self._cluster.nodes:
                if node not in conf.members:
                    changes += [ConfChange(ConfChangeKind.ADD_LEARNER, node, f"{node}:1")] * 3
            for learner in conf.learners:
                changes += [ConfChange(ConfChangeKind.PROMOTE, learner)] * 3
                changes += [ConfChange(ConfChangeKind.REPLACE, learner, replaced=voter) for voter in conf.voters]
            if not changes:
                return False
            change = changes[int(choice * len(changes))]
            self._cluster.trace_event(f"{change}")
            return not isinstance(leader.replica.change(change), Refusal)

        return self._ask_leader(ask)

    def _drop_files(self, node: Node, share: float) -> bool:
        process, cluster = node.process, self._cluster
        if process is None or node.node_id in cluster.paused:
            return False
        floor = process.log.durable_index
        if self._rng.random() < 0.5:
            floor = min(NO_INDEX if n.process is None else n.process.log.durable_index for n in cluster.nodes.values())
        has_dropped = False

        def step() -> None:
            nonlocal has_dropped
            has_dropped = process.drop_files(share, floor)

        cluster.on(node, "drops files", step)
        return has_dropped

    def _newest_leader(self) -> NodeId | None:
        nodes = self._cluster.nodes.values()
        leaders = [node for node in nodes if node.process and node.process.core.role is Role.LEADER]
        newest = max(leaders, key=lambda node: node.process.core.term if node.process else 0, default=None)
        return None if newest is None else newest.node_id

    def _delay_transfer(self, victim: Node, tries: int = 200) -> None:
        cluster = self._cluster
        if cluster.is_healed:
            return
        name = self._newest_leader()
        leader = None if name is None else cluster.nodes[name].process
        others = [node for node in cluster.nodes if node not in (name, victim.node_id)]
        # Together with the victim they are a majority.
        late = others[: len(cluster.nodes) // 2]
        if name is None or leader is None or name == victim.node_id or not _has_sent_everything(leader.core, late[0]):
            if name == victim.node_id and leader is not None and tries % 20 == 0:
                cluster.on(victim, "hands over", leader.replica.transfer)
            if tries:
                cluster.at(cluster.now + 0.005, self._delay_transfer, victim, tries - 1)
            return
        self.effective[DelayedTransferTarget.__name__] += 1
        self._carry_out(Heal())
        self.strike(Pause(late[0]))
        for node in late[1:]:
            self.strike(OneWay(name, node))
        cluster.on(leader.node, "hands over", lambda: leader.replica.transfer(late[0]))
        given_up = cluster.now + 1.1 * cluster.scenario.config.election_timeout_seconds_min
        at = given_up + self._rng.uniform(0.1, 0.3)
        self.strike(DiskSpeed(victim.node_id, 0.9))
        for _ in range(4):
            cluster.at(self._rng.uniform(given_up, given_up + 0.05), cluster.send_to_newest)
        cluster.at(at, self._unless_healed, lambda: self._elect_late(late, victim.node_id))

    def _elect_late(self, late: list[NodeId], victim: NodeId) -> None:
        """Cut the power of ``victim`` or kill it, and leave it alone with the late nodes."""
        cluster = self._cluster
        rest = tuple(node for node in cluster.nodes if node not in (victim, *late))
        by_turns = self.effective[DelayedTransferTarget.__name__] % 2
        self.strike(PowerCut(victim) if by_turns else Crash(victim))
        self.strike(Partition(((victim, *late), rest)))
        for node in (victim, late[0]):
            self.strike(DiskSpeed(node, 0.005))
        cluster.restart(cluster.nodes[victim])
        cluster.at(cluster.now + 0.005, self.strike, Resume(late[0]))

    def _depose(self) -> bool:
        cluster = self._cluster
        old = self._newest_leader()
        if old is None:
            return False
        # All other nodes come back, or no leader could be elected.
        self._carry_out(Heal())
        self.strike(Isolation(old))
        patience = cluster.scenario.config.election_timeout_seconds_min
        for _ in range(6):
            at = cluster.now + self._rng.uniform(0.0, 1.2 * patience)
            cluster.at(at, self._read, cluster.nodes[old])
            cluster.at(at - 0.3 * (at - cluster.now), cluster.send_to_newest)
        self._spread_rumors(old)
        return True

    def _pause_leader(self, tries: int = 100) -> None:
        cluster = self._cluster
        old = self._newest_leader()
        process = None if old is None else cluster.nodes[old].process
        if old is None or process is None or not process.core.ready or old in cluster.paused:
            if tries:
                cluster.at(cluster.now + 0.01, self._unless_healed, lambda: self._pause_leader(tries - 1))
            return
        self.effective[PausedLeader.__name__] += 1
        node = process.node
        self._carry_out(Heal())
        # Each read makes it confirm its leadership with all others.
        self._read(node)
        self.strike(Pause(old))
        # A node that hears from the leader after the rumor discards it.
        self._spread_rumors(old, cluster.scenario.link_quality.latency_seconds_max)
        patience = cluster.scenario.config.election_timeout_seconds_min
        for _ in range(4):
            cluster.at(cluster.now + self._rng.uniform(0.2, 1.0) * patience, cluster.send_to_newest)

        def wake() -> None:
            if node.process is process and old in cluster.paused:
                cluster.paused[old].insert(0, lambda: self._read(node))
            self.strike(Resume(old))

        cluster.at(cluster.now + self._rng.uniform(1.0, 1.5) * patience, self._unless_healed, wake)

    def _spread_rumors(self, node_id: NodeId, after_seconds: float = 0.0) -> None:
        cluster = self._cluster
        for node in cluster.nodes:
            if node != node_id:
                at = cluster.now + after_seconds + self._rng.uniform(0.0, 0.02)
                cluster.at(at, self._spread_rumor, FalseProcessEnd(node, node_id))

    def _read(self, node: Node) -> None:
        if node.process is not None:
            self._cluster.on(node, "is read", node.process.read)

    def _spread_rumor(self, rumor: FalseProcessEnd) -> bool:
        node = self._cluster.nodes[rumor.node]
        process = node.process
        if process is None:
            return False
        self._cluster.on(node, f"hears that {rumor.about} has ended", lambda: process.replica.peer_gone(rumor.about))
        return True

    def _stop(self, node: Node) -> bool:
        if node.process is None or node.node_id in self._cluster.paused:
            return False
        node.stop()
        self._cluster.wires.break_connections(node.node_id)
        return True
