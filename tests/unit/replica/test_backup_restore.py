"""Logs of a new group, made from a backup: equal on all replicas, and with the members that were asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise

import pytest

from chaos.disk import MemoryDisk
from raftlog import ConfState, CoreConfig, NodeId
from raftlog.backup_restore import restore
from raftlog.bootstrap import configurations, core_for
from raftlog.consensus.confchange import encode_conf, may_follow
from raftlog.forced_members import MembersInvalid, founding_configuration, steps_to
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, NORMAL, InlineWriter, MetaCorrupt, SegmentLog
from raftlog.segment.backup import Backup, BackupTarget
from raftlog.segment.backup_layouts import Snapshot
from raftlog.segment.backup_store import BackupDamaged, BackupRefused, DirectoryStore
from raftlog.segment.running_log import RunningLog

SOURCE, TARGET = "/source", "/backup"
N0, N1, N2, N3 = map(NodeId, ("n0", "n1", "n2", "n3"))
OLD = ConfState((N0, N1, N2), (), (), ((N0, "a:1"), (N1, "b:1"), (N2, "c:1")))
NEW = {N0: "d:1", N1: "e:1", N2: "f:1"}


def body(index: int) -> bytes:
    return b"%06d" % index * 20


class Home:
    """A log that is backed up, and directories that it is restored into; all on one disk."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.log = self.open(SOURCE, "n0")

    def open(self, directory: str, node_id: str) -> SegmentLog:
        return SegmentLog.open(
            directory,
            cluster_id="c",
            node_id=node_id,
            segment_bytes=4096,
            disk=self.disk,
            writer=InlineWriter(clock=partial(next, count())),
        )

    def put(self, entries: int, term: int = 1) -> None:
        for _ in range(entries):
            self.log.append(NORMAL, self.log.last_index + 1, Term(term), body(self.log.last_index + 1))
        self.commit()

    def configure(self, conf: ConfState, term: int = 1) -> None:
        self.log.append(CONFIG, self.log.last_index + 1, Term(term), encode_conf(conf))
        self.commit()

    def commit(self) -> None:
        self.log.submit(self.log.last_ticket + 1, commit_hint=self.log.last_index)

    def back_up(self, conf: bytes = encode_conf(OLD), snapshot: Snapshot | None = None) -> None:
        source, target = RunningLog(self.disk, SOURCE), BackupTarget(DirectoryStore(self.disk, TARGET))
        target.extend(source, conf=conf, snapshot=snapshot, now_ms=1)
        source.close()
        target.close()

    def restore(
        self, node_id: NodeId, wanted: Callable[[bytes], bool] | None = None, new: dict[NodeId, str] = NEW
    ) -> SegmentLog:
        backup = Backup(DirectoryStore(self.disk, TARGET))
        directory = f"/new/{node_id}"
        try:
            end = restore(backup, self.disk, directory, node_id=node_id, addresses=new, is_wanted=wanted)
        finally:
            backup.close()
        log = self.open(directory, node_id)
        assert (log.last_index, log.last_term) == (end.last_index, end.last_term)
        return log


def bodies(log: SegmentLog) -> list[bytes]:
    found = []
    for index in range(log.first_index, log.last_index + 1):
        refs, data = log.read_entries(LogIndex(index), 1)
        if refs[0].kind == NORMAL:
            found.append(bytes(data[48 : refs[0].size]))
    return found


@pytest.mark.parametrize("entries", [1, 20, 24, 25, 200])
def test_restored_logs_have_every_entry_and_are_equal(entries: int) -> None:
    home = Home()
    home.put(entries)
    home.back_up()
    logs = [home.restore(node) for node in (N0, N1, N2)]
    for log in logs:
        assert bodies(log) == [body(index) for index in range(1, entries + 1)]
    assert len({(log.last_index, log.last_term, log.end_pos, log.chain) for log in logs}) == 1
    assert len({log.store_id for log in logs} | {home.log.store_id}) == 4


def test_restored_replica_elects_new_members_in_a_new_term() -> None:
    home = Home()
    home.put(50, term=7)
    home.back_up()
    log = home.restore(N1)
    confs = configurations(log, ConfState())
    assert confs[0] == (0, OLD)
    assert confs[-1][1] == ConfState((N0, N1, N2), (), (), tuple(NEW.items()))
    assert (log.meta.term, log.meta.voted_for, log.meta.commit_hint) == (8, "n1", 50)
    core = core_for(log, confs, node_id=N1, config=CoreConfig(), rng=random.Random(1), now=0.0)
    assert not core.abstaining


def test_restored_members_are_added_in_acceptable_steps() -> None:
    home = Home()
    home.put(50)
    home.back_up()
    log = home.restore(N3, new={N3: "g:1"})
    confs = [conf for _, conf in configurations(log, ConfState())]
    assert confs[-1] == ConfState((N3,), (), (), ((N3, "g:1"),))
    assert all(may_follow(new, old) for old, new in pairwise(confs))


def test_founders_missing_from_a_log_are_derived_from_its_first_change() -> None:
    home = Home()
    home.put(10)
    home.configure(ConfState((N0, N1, N2, N3), (N0, N1, N2)))
    home.configure(ConfState((N0, N1, N2, N3)))
    home.put(10)
    home.back_up(conf=b"")
    confs = [conf for _, conf in configurations(home.restore(N0), ConfState())]
    assert confs[0].voters == (N0, N1, N2)
    assert confs[-1].voters == (N0, N1, N2)
    assert all(may_follow(new, old) for old, new in pairwise(confs))


def test_restore_to_a_point_ends_before_the_first_later_entry() -> None:
    home = Home()
    home.put(200)
    home.back_up()
    log = home.restore(N0, lambda found: found <= body(123))
    assert bodies(log) == [body(index) for index in range(1, 124)]
    assert log.meta.commit_hint == 123


def test_restore_to_a_point_before_the_first_entry_is_refused() -> None:
    home = Home()
    home.put(20)
    home.back_up()
    with pytest.raises(BackupRefused, match="can be restored to entry 1 or any later one"):
        home.restore(N0, lambda found: False)


def test_log_without_its_beginning_is_restored_with_its_snapshot() -> None:
    home = Home()
    home.put(200)
    start = home.log.segments()[2].start
    home.log.drop_prefix(start, encode_conf(OLD))
    home.log.submit(home.log.last_ticket + 1)
    home.back_up(snapshot=Snapshot(LogIndex(150), b"state" * 1000))
    log = home.restore(N0)
    assert (log.base_pos, log.last_index) == (start, 201)
    assert home.disk.content("/new/n0/snapshot") == b"state" * 1000
    with pytest.raises(BackupRefused, match="to entry 150 or any later one"):
        home.restore(N1, lambda found: found <= body(149))
    assert home.restore(N2, lambda found: found <= body(150)).meta.commit_hint == 150


def test_log_without_its_beginning_is_restored_from_one_file() -> None:
    home = Home()
    home.put(60)
    home.log.drop_prefix(home.log.segments()[-1].start, encode_conf(OLD))
    home.log.submit(home.log.last_ticket + 1)
    home.back_up(snapshot=Snapshot(LogIndex(60), b"state"))
    log = home.restore(N0)
    assert log.base[0] == home.log.base[0] > 0
    assert bodies(log)[-1] == body(60)


@pytest.mark.parametrize("start", [4096, 12288])
def test_directory_restored_from_a_damaged_backup_is_not_a_log(start: int) -> None:
    home = Home()
    home.put(100)
    home.back_up()
    home.disk.flip_bit(f"{TARGET}/log/{start:020d}", 500)
    with pytest.raises(BackupDamaged, match=f"{start:020d}: damaged: entry at {start + 336}: checksum of the body"):
        home.restore(N0)
    with pytest.raises(MetaCorrupt):
        home.open("/new/n0", N0)


def test_steps_lead_from_any_configuration_to_the_requested_members() -> None:
    joint = ConfState((N0, N1, N3), (N0, N1, N2), (), OLD.addresses)
    for before in (OLD, joint, ConfState((N3,), (), (N0,)), ConfState((N0, N1, N2), (), (N3,))):
        for goal in (NEW, {N0: "d:1"}, {N3: "g:1"}):
            steps = [before, *steps_to(before, goal)]
            assert steps[-1] == ConfState(tuple(goal), (), (), tuple(goal.items()))
            assert all(may_follow(new, old) for old, new in pairwise(steps))


def test_members_that_are_not_known_need_one_step() -> None:
    assert steps_to(None, {N0: "d:1"}) == [ConfState((N0,), (), (), ((N0, "d:1"),))]


def test_founders_are_the_outgoing_voters_of_the_first_change() -> None:
    assert founding_configuration(ConfState((N0, N1, N3), (N0, N1, N2), (), OLD.addresses)) == OLD
    assert founding_configuration(ConfState((N0, N1, N2), (), (N3,), OLD.addresses)) == OLD


def test_members_beyond_the_limit_are_refused() -> None:
    many = tuple(NodeId(f"m{number}") for number in range(9))
    with pytest.raises(MembersInvalid, match="18 members"):
        steps_to(ConfState(many), {NodeId(f"n{number}"): f"h{number}:1" for number in range(9)})
