"""`raftmq group force` on the directory of a stopped replica."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import cbor2
import pytest
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, CommandFailed
from raftlog import CoreConfig, NodeId, RealDisk
from raftlog.bootstrap import configurations, core_for
from raftlog.consensus.confchange import encode_conf, may_follow
from raftlog.consensus.types import ConfState
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.repair_mode import encode_members
from raftlog.segment import CONFIG, NORMAL, SegmentLog
from raftlog.segment.note_names import ABSTAINING, MEMBERS, STORES

N0, N1, N2, N3 = map(NodeId, ("n0", "n1", "n2", "n3"))
THREE = ConfState((N0, N1, N2), (), (), ((N0, "a:1"), (N1, "b:1"), (N2, "c:1")))


def opened(data_dir: Path) -> SegmentLog:
    return SegmentLog.open(
        str(data_dir / "commitlog"), cluster_id="c", node_id="n0", segment_bytes=4096, disk=RealDisk()
    )


def filled(
    data_dir: Path,
    *,
    conf: ConfState | None = None,
    noted: ConfState | None = THREE,
    notes: dict[str, bytes] | None = None,
) -> Path:
    """A replica that knows 100 of its 105 entries to be committed."""
    log = opened(data_dir)
    for index in range(1, 106):
        if index == 50 and conf is not None:
            log.append(CONFIG, LogIndex(index), Term(3), encode_conf(conf))
        else:
            log.append(NORMAL, LogIndex(index), Term(3), b"%06d" % index * 20)
    if noted is not None:
        log.set_note(MEMBERS, encode_members(NO_INDEX, noted))
    for key, value in (notes or {}).items():
        log.set_note(key, value)
    log.submit(1, term=Term(5), voted_for="n2", commit_hint=LogIndex(100))
    log.close()
    return data_dir


def run(data_dir: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["group", "force", "--data-dir", str(data_dir), *more])


def refusal(result: Result) -> CommandFailed:
    assert isinstance(result.exception, CommandFailed), result.output
    return result.exception


def content(data_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data_dir / "commitlog").iterdir() if path.name != "LOCK"}


def test_force_is_a_dry_run_that_lists_losses(tmp_path: Path) -> None:
    filled(tmp_path)
    before = content(tmp_path)
    for result in (run(tmp_path), run(tmp_path, "--dry-run")):
        assert result.exit_code == 0, result.output
        for line in (
            "entries 1 to 105, the last of term 3",
            "known to be committed: entries up to 100",
            "members: voters n0 n1 n2",
            "n0 becomes the only voter, at a:1",
            "Removed from the group: n1, n2",
            "Entries 101 to 105 are kept and become committed",
            "All messages and offsets after entry 105",
            "never run again with their old directories: n1, n2",
            "nothing was changed; pass --yes to make this change",
        ):
            assert line in result.output
    assert content(tmp_path) == before


def test_yes_leaves_a_single_voter_in_steps_new_replicas_accept(tmp_path: Path) -> None:
    filled(tmp_path, notes={STORES: cbor2.dumps({"n1": "x", "n2": "y"})})
    result = run(tmp_path, "--yes")
    assert result.exit_code == 0, result.output
    assert "done: n0 is the only voter" in result.output
    log = opened(tmp_path)
    confs = configurations(log, THREE)
    assert confs[-1] == (107, ConfState((N0,), (), (), ((N0, "a:1"),)))
    assert all(may_follow(new, old) for (_, old), (_, new) in pairwise(confs))
    assert (log.meta.term, log.meta.voted_for, log.last_term) == (6, "n0", 6)
    assert STORES not in log.notes, "new replicas may have the ids of the lost ones"
    core = core_for(log, confs, node_id=N0, config=CoreConfig(), rng=random.Random(1), now=0.0)
    core.tick(100.0)
    assert core.take_effects().role is not None, "it is elected by itself"
    log.close()
    assert "n0 is already the only voter" in str(refusal(run(tmp_path, "--yes")))


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        (ConfState((N0, N1, N3), (N0, N1, N2), (), THREE.addresses), "outgoing n0 n1 n2"),
        (ConfState((N1, N2), (), (N0,), THREE.addresses), "n0 is a learner: it may lack many"),
        (ConfState((N0, N1, N2), (), (N3,), THREE.addresses), "Removed from the group: n1, n2, n3"),
    ],
)
def test_changes_under_way_and_learners(tmp_path: Path, conf: ConfState, said: str) -> None:
    filled(tmp_path, conf=conf)
    result = run(tmp_path, "--yes")
    assert said in result.output
    log = opened(tmp_path)
    confs = [each for _, each in configurations(log, THREE)][1:]
    log.close()
    assert confs[-1].voters == (N0,)
    assert confs[-1].members == {N0}
    assert all(may_follow(new, old) for old, new in pairwise(confs))


def test_forced_replica_ends_its_abstention(tmp_path: Path) -> None:
    filled(tmp_path, notes={ABSTAINING: b"1"})
    assert "n0 itself may have lost entries that it had acknowledged" in run(tmp_path, "--yes").output
    log = opened(tmp_path)
    assert ABSTAINING not in log.notes
    log.close()


def test_members_that_only_the_settings_name(tmp_path: Path) -> None:
    filled(tmp_path, noted=None)
    assert "does not contain the replication address of n0: pass --address" in str(refusal(run(tmp_path)))
    result = run(tmp_path, "--address", "d:7", "--yes")
    assert "its files do not say who belongs to the group" in result.output
    log = opened(tmp_path)
    assert configurations(log, THREE)[-1][1] == ConfState((N0,), (), (), ((N0, "d:7"),))
    log.close()


def test_json_output_lists_unavailable_members(tmp_path: Path) -> None:
    filled(tmp_path)
    found: dict[str, Any] = json.loads(run(tmp_path, "--json").stdout)
    assert found["done"] is False
    assert found["lost_members"] == ["n1", "n2"]
    assert (found["last_index"], found["last_term"], found["commit_index"], found["term"]) == (105, 3, 100, 5)


def test_running_damaged_and_removed_replicas_are_refused(tmp_path: Path) -> None:
    filled(tmp_path / "running")
    log = opened(tmp_path / "running")
    assert "in use by process" in str(refusal(run(tmp_path / "running", "--yes")))
    log.close()
    filled(tmp_path / "removed", conf=ConfState((N1, N2), (), (), THREE.addresses))
    assert "n0 was removed from its group" in str(refusal(run(tmp_path / "removed", "--yes")))
    filled(tmp_path / "damaged")
    with open(tmp_path / "damaged" / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    failed = refusal(run(tmp_path / "damaged", "--yes"))
    assert failed.exit_code == EXIT_FAILED
    assert "raftmq log discard-damaged" in str(failed)
    assert "No such file" in str(refusal(run(tmp_path / "running" / "queues", "--yes")))
