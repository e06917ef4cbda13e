"""A group of brokers in simulated time, with clients, and all the checks of the log below it."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

from chaos.broker_sim import sockets
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.progress import Progress
from chaos.broker_sim.schedule import BrokerScenario
from chaos.broker_sim.sockets import SimConnection, SimDialing
from chaos.broker_sim.workload import Workload
from chaos.faults import Restart, Stop
from chaos.limits import override
from chaos.log_sim.cluster import Cluster, RunResult
from chaos.log_sim.node import NewProcess, Node, Process
from chaos.violation import Violation
from mq.broker.context import ArchiveAccess
from mq.broker.settings import BrokerSettings
from mq.broker.state.format_level import LEVEL_NEWEST, announced_level
from mq.store.checkpoint import QUEUE_DIRECTORY
from raftlog import NodeId, Software
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import Role
from raftlog.net import machine
from raftlog.segment.meta import Base

CLIENT_PORT, PEER_PORT = 10911, 40911
EPOCH_MS = 1_700_000_000_000
_RAM = Path("/dev/shm")  # noqa: S108 - a directory of our own is made there
_QUIET_SECONDS = 60.0
_EXPIRY_SECONDS = 20.0
_UPGRADES = 0.3
"""The fraction of groups that begin with older software on some nodes."""


class BrokerCluster(Cluster):
    """The simulated brokers of a scenario.

    Args:
        workload: what clients do.
        trace: gets one line per event, when given.
    """

    new_process: ClassVar[NewProcess] = BrokerProcess

    def __init__(
        self,
        scenario: BrokerScenario,
        workload: type[Workload],
        trace: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__(scenario, RaftCore, trace)
        self.plan = scenario
        self._directory = Path(tempfile.mkdtemp(prefix="chaos-", dir=_RAM if _RAM.is_dir() else None))
        self._numbers = {node_id: number for number, node_id in enumerate(self.nodes, 1)}
        self._client_rng = random.Random(f"{scenario.seed} clients")
        self.client_faults = random.Random(f"{scenario.seed} clients that stop")
        self.socket_counts: Counter[str] = Counter()
        self._upgrades = random.Random(f"{scenario.seed} upgrades")
        self._is_upgraded = not scenario.spares and self._upgrades.random() < _UPGRADES
        """Whether the group begins with older software on some nodes, and gets the newest on the way."""
        self._levels: dict[str, int] = {}
        self._settings: dict[tuple[NodeId, int], BrokerSettings] = {}
        self.dropped_pos = 0
        """The highest physical offset up to which a log may have been dropped."""
        self.workload = workload(self)
        self.limits = self.workload.limits(scenario.broker_limits)

    def run(self) -> None:
        try:
            with override(machine, "Dialing", SimDialing), self.workload.changed_limits():
                super().run()
        finally:
            for node in self.nodes.values():
                if isinstance(process := node.process, BrokerProcess):
                    self.workload.on_broker_exit(process)
                    process.queues.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    # -- the world of brokers and clients ------------------------------------------------------------------------------

    def settings_of(self, node: Node) -> BrokerSettings:
        """Return the settings with which a broker starts."""
        config = self.plan.config
        # Smaller than users may set them.
        small: dict[str, Any] = {
            "segment_bytes": self.plan.segment_bytes,
            "heartbeat_seconds": config.heartbeat_seconds,
            "election_timeout_seconds_min": config.election_timeout_seconds_min,
            "election_timeout_seconds_max": config.election_timeout_seconds_max,
        }
        key = node.node_id, self._level_of(node.node_id)
        if (settings := self._settings.get(key)) is None:
            settings = self._settings[key] = self._read_settings(*key)
        return settings.model_copy(update=small | self.workload.settings())

    def _read_settings(self, node_id: NodeId, level: int) -> BrokerSettings:
        """Read a node's settings, once for each level: that takes as long as many turns of a broker."""
        peers = ",".join(f"{name}@10.0.0.{number}:{PEER_PORT}" for name, number in self._numbers.items())
        return BrokerSettings(
            node_id=node_id,
            peers=peers,
            listen=f"10.0.0.{self._numbers[node_id]}:{CLIENT_PORT}",
            data_dir=self._directory / node_id,
            entry_bytes_max=self.plan.entry_bytes_max,
            checkpoint_seconds=self.plan.checkpoint_seconds,
            retention_check_seconds=10.0**9,  # the schedule says when the log is dropped
            message_bytes_max=1024,
            format_level_max=level,
        )

    def _level_of(self, node_id: str) -> int:
        """Return the format level of a node. In some groups, nodes start with older software and are upgraded later.

        All have the newest where nodes join and leave: a node that rejoins with older software would be refused by the
        others' handshake, which is not simulated.
        """
        if not self._is_upgraded:
            return LEVEL_NEWEST
        if self._levels.get(node_id) != LEVEL_NEWEST:
            self._levels[node_id] = self._upgrades.choice((LEVEL_NEWEST - 1, LEVEL_NEWEST))
        return self._levels[node_id]

    def software_of(self, node_id: str) -> Software | None:
        """Return the software that a node's process reports; None if the node does not run."""
        node = self.nodes.get(NodeId(node_id))
        if node is None or not isinstance(node.process, BrokerProcess):
            return None
        return Software(level_newest=announced_level(node.process.settings.format_level_max))

    def flip_derived(self, node: Node, fraction: float) -> bool:
        queues = self._directory / node.node_id / QUEUE_DIRECTORY
        files = sorted(path for path in queues.rglob("*") if path.is_file() and path.name.isdigit())
        if not files:
            return False
        position = fraction * len(files)
        path = files[int(position)]
        content = bytearray(path.read_bytes())
        nbytes = len(content.rstrip(b"\0"))
        if not nbytes:
            return False
        bit = int(position % 1 * nbytes * 8)
        content[bit // 8] ^= 1 << bit % 8
        with path.open("r+b") as file:  # in place: the broker may have it open
            file.seek(bit // 8)
            file.write(content[bit // 8 : bit // 8 + 1])
        return True

    def address_of(self, node: Node) -> tuple[str, int]:
        """Return the address at which a broker serves clients."""
        return f"10.0.0.{self._numbers[node.node_id]}", CLIENT_PORT

    def node_at(self, address: tuple[str, int]) -> Node:
        """Return the node with the host of ``address``."""
        return next(node for node in self.nodes.values() if self.address_of(node)[0] == address[0])

    def wall_ms(self, node: Node) -> int:
        """Return the time of a node's wall clock, in milliseconds since 1970."""
        return self.true_ms() + node.wall_ahead_ms

    def true_ms(self) -> int:
        """Return the true time, in milliseconds since 1970."""
        return EPOCH_MS + round(self.now * 1000)

    def client_latency(self) -> float:
        """Choose at random how many seconds bytes travel between a client and a broker."""
        return sockets.latency(self._client_rng)

    def in_process(self, process: Process, what: str, step: Callable[[], object]) -> None:
        """Run ``step`` in a turn of ``process``, unless the process has ended."""
        if process.node.process is process:
            self.on(process.node, what, step)

    def accept(self, node: Node, line: SimConnection, side: int, peer: tuple[str, int]) -> None:
        """Open a connection to a broker. If the broker does not run, close the connection at once."""
        process = node.process
        if isinstance(process, BrokerProcess):
            process.accept(line, side, peer)
        else:
            line.carry(side, None)

    def some_node(self, rng: random.Random) -> Node:
        """Choose the node that gets a client's request: mostly the leader, if there is one."""
        leaders = [process.node for process in self.brokers() if process.leads]
        if leaders and rng.random() < 0.7:
            return rng.choice(leaders)
        return rng.choice(list(self.nodes.values()))

    def brokers(self) -> list[BrokerProcess]:
        """Return the broker processes that run."""
        return [cast("BrokerProcess", node.process) for node in self.nodes.values() if node.process is not None]

    def _members(self) -> list[BrokerProcess]:
        """Return the running brokers that must keep promises: the members of the group, as far as is known."""
        leader = self.leader()
        members = self.scenario.nodes if leader is None else leader.core.conf.members
        return [process for process in self.brokers() if process.node_id in members]

    def needed_from(self) -> int:
        """Return the physical offset from which on the log must be kept."""
        return self.workload.needed_from()

    def on_entry(self, index: int, body: bytes) -> None:
        self.workload.on_entry(index, body)

    def trace_line(self, line: str) -> None:
        """Write a log line of a broker or client to the trace."""
        if self.trace is not None:
            self.trace(f"{self.now:.6f} {line}")

    def on_log_line(self, node: Node, event: str, values: Mapping[str, object]) -> None:
        self.workload.on_log_line(node, event, values)

    def archive_access(self, process: BrokerProcess) -> ArchiveAccess | None:
        return self.workload.archive_access(process)

    def read_archived(
        self, process: BrokerProcess, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]
    ) -> bool:
        return self.workload.read_archived(process, archive_end, pos, nbytes, on_read)

    def on_broker_start(self, process: BrokerProcess) -> None:
        self.workload.on_broker_start(process)

    def on_broker_exit(self, process: BrokerProcess) -> None:
        self.workload.on_broker_exit(process)

    # -- the run -------------------------------------------------------------------------------------------------------

    def begin_load(self) -> None:
        self.workload.begin()
        self.at(0.5, self._read)
        for number, node in enumerate(self.nodes.values(), 1):  # one after the other, as operators do
            self.at(self.scenario.safety_seconds * (0.4 + 0.05 * number), self._upgrade, node)

    def _upgrade(self, node: Node) -> None:
        """Stop a node with older software cleanly. It has the newest software when it starts the next time."""
        if self._levels.get(node.node_id, LEVEL_NEWEST) == LEVEL_NEWEST:
            return
        self._levels[node.node_id] = LEVEL_NEWEST
        self.trace_event(f"{node.node_id} is upgraded")
        self._strike(Stop(node.node_id))
        self.at(self.now + 0.1, self._strike, Restart(node.node_id))

    def _read(self) -> None:
        nodes = [node for node in self.nodes.values() if node.process is not None]
        if nodes and (process := self.rng.choice(nodes).process) is not None:
            self.on(process.node, "is read", process.read)
        if not self.is_healed:
            self.at(self.now + self.rng.expovariate(2.0), self._read)

    def send_to_newest(self) -> None:
        if not self.is_healed:
            self.workload.run_operation()

    def _check_liveness(self) -> None:
        """Check that a leader is elected in time, everything pending ends, and all replicas agree."""
        patience = 10 * self.scenario.config.election_timeout_seconds_max + _QUIET_SECONDS
        self._run_until_quiet(patience)
        if self.rng.random() < 0.3:
            self._rederive(patience)
        self.workload.check_end()

    def _run_until_quiet(self, patience: float) -> None:
        """Run until nothing is pending, or nothing has progressed for ``patience`` (see `Progress`).

        With the small windows of some scenarios, catching up takes long; but it must always progress.
        """
        start = self.now
        progress = Progress(start, patience)
        while progress.may_go_on(self.now):
            self._run_until(self.now + 0.25)
            processes = self._members()
            if self.now > start + 4.0:  # every request was answered, or has timed out
                self.workload.stop()
            if self.now > start + _EXPIRY_SECONDS:
                self._expire_on_learners()
            if not self.workload.stopped or not any(process.leads for process in processes):
                continue
            ends = {(process.replica.applied_index, process.log.last_index) for process in processes}
            behind = max(last for _, last in ends) - min(applied for applied, _ in ends)
            missing_count, open_count = self.workload.ledger.missing_sends(), self.workload.pending_count()
            progress.see(self.now, missing_count=missing_count, open_count=open_count, behind=behind)
            quiet = len(ends) == 1 and len(set(*ends)) == 1 and not any(process.writer.busy for process in processes)
            if not (quiet and self._has_level(processes)):
                continue
            if not (self.workload.is_done() and self.workload.has_read_all):
                continue
            if all(self.workload.has_whole_queues(process) for process in processes):
                self._check_end(cast("list[Process]", processes))
                self.workload.check_replicas(processes)
                for process in processes:
                    process.broker.check_invariants()
                return
        raise Violation(
            f"liveness: {patience} s after everything healed: done {self.workload.is_done()}, "
            f"unfinished {self.workload.pending_count()}, all read {self.workload.has_read_all}, "
            f"format levels {[process.metadata.format_level.level for process in self.brokers()]}; "
            + "; ".join(f"{n.node_id} {n.process.core.status() if n.process else 'down'}" for n in self.nodes.values())
        )

    def _expire_on_learners(self) -> None:
        """Expire messages that all voters deleted early, if a learner still has them.

        A learner can neither lead nor serve them. The leader refuses to say that they are gone, until an operator makes
        it a voter or until they expire, which takes as long as retention: days.
        """
        leader = self.leader()
        if leader is None:
            return
        _, holder = leader.replica.beginning()
        if holder is not None and not leader.core.conf.is_voter(holder):
            for process in self._members():
                if process.core.began_early:
                    process.replica.note_early(None)

    def _has_level(self, processes: list[BrokerProcess]) -> bool:
        """Return whether all members have the highest format level that each of them supports.

        While a member is down, the level may be lower: a leader raises it only when all members report theirs.
        """
        level_max = min(announced_level(process.settings.format_level_max) for process in processes)
        levels = {process.metadata.format_level.level for process in processes}
        if max(levels) > level_max:
            raise Violation(f"the format levels are {levels}, and a member understands at most {level_max}")
        leader = self.leader()
        all_run = leader is not None and len(processes) == len(leader.core.conf.members)
        return levels == {level_max} or (len(levels) == 1 and not all_run)

    def _rederive(self, patience: float) -> None:
        """Restart a replica, which must derive the same state: without its derived files if its log is complete."""
        node = self.rng.choice([process.node for process in self._members()])
        assert node.process is not None, "a process ended without a cause"
        complete = node.process.log.base[0] == 0
        self.trace_event(f"{node.node_id} is stopped in the end, its log complete: {complete}")
        self.nemesis.end(node, power_cut=False)
        if complete:
            shutil.rmtree(self._directory / node.node_id)
        self.restart(node)
        self._run_until_quiet(patience)

    def outcome(self, broke: str | None) -> RunResult:
        counts = dict(sorted((self.workload.counts + self.socket_counts).items()))
        return replace(super().outcome(broke), acknowledged=self.workload.counts["acknowledged"], counts=counts)

    def leader(self) -> BrokerProcess | None:
        """Return the leader with the highest term; None if no broker leads."""
        leaders = [process for process in self.brokers() if process.core.role is Role.LEADER]
        return max(leaders, key=lambda process: process.core.term, default=None)
