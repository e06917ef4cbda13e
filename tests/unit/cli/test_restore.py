"""`raftmq restore`: which directories it takes, and where a log ends that is restored to a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from mq.protocol.messages.records import encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from raftlog import RealDisk
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, SegmentLog

HOUR_MS = 3_600_000
PEERS = "n0@127.0.0.1:1,n1@127.0.0.1:2,n2@127.0.0.1:3"
HOST = encode_host("10.0.0.1", 1)


def record(stored_ms: int) -> bytes:
    return encode_record(
        topic="T",
        queue_id=0,
        body=b"body" * 20,
        properties="",
        queue_offset=QueueOffset(0),
        physical_offset=PhysicalOffset(0),
        born_timestamp_ms=0,
        born_host=HOST,
        store_timestamp_ms=stored_ms,
        store_host=HOST,
    )


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of one message for each hour of the first days of 1970."""
    data_dir = tmp_path / "old"
    log = SegmentLog.open(
        str(data_dir / "commitlog"), cluster_id="c", node_id="n1", segment_bytes=4096, disk=RealDisk()
    )
    for index in range(1, 101):
        log.append(NORMAL, LogIndex(index), Term(1), record(index * HOUR_MS))
    log.submit(1, commit_hint=LogIndex(100))
    log.close()
    done = CliRunner().invoke(
        app, ["backup", str(tmp_path / "backup"), "--data-dir", str(data_dir), "--namesrv", "127.0.0.1:1"]
    )
    assert done.exit_code == 0, done.output
    return tmp_path / "backup"


def run(backup: Path, *arguments: str, peers: str = PEERS) -> Result:
    return CliRunner().invoke(app, ["restore", str(backup), *arguments, "--peers", peers])


def refusal(result: Result) -> CommandFailed:
    assert isinstance(result.exception, CommandFailed), result.output
    return result.exception


def test_all_directories_get_the_same_log(backup: Path, tmp_path: Path) -> None:
    targets = [f"n{number}={tmp_path / f'n{number}'}" for number in range(3)]
    found = json.loads(run(backup, *targets, "--json").stdout)
    assert (found["restored_index"], found["last_index"], found["last_term"]) == (100, 101, 2)
    assert found["newest_message_at"] == "1970-01-05T04:00:00.000Z"
    logs = [
        {path.name: path.read_bytes() for path in (tmp_path / f"n{number}" / "commitlog").glob("0*")}
        for number in range(3)
    ]
    assert logs[0] == logs[1] == logs[2]
    assert not list(tmp_path.glob("n?/commitlog.restoring"))


def test_restore_ends_at_the_given_time(backup: Path, tmp_path: Path) -> None:
    result = run(backup, f"n0={tmp_path / 'n0'}", "--until", "1970-01-02T12:00:00Z", "--json")
    found = json.loads(result.stdout)
    assert (found["restored_index"], found["newest_message_at"]) == (36, "1970-01-02T12:00:00.000Z")


def test_time_before_the_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    failed = refusal(run(backup, f"n0={tmp_path / 'n0'}", "--until", "1970-01-01T00:30:00Z"))
    assert failed.exit_code == EXIT_FAILED
    assert "can be restored to entry 1 or any later one" in str(failed)
    assert not (tmp_path / "n0").exists()


def test_directory_with_data_is_refused_and_left_alone(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "n1" / "commitlog").mkdir(parents=True)
    failed = refusal(run(backup, f"n0={tmp_path / 'n0'}", f"n1={tmp_path / 'n1'}"))
    assert failed.exit_code == EXIT_REFUSED
    assert "n1 contains data, nothing was restored: commitlog" in str(failed)
    assert not (tmp_path / "n0").exists()
    assert not list((tmp_path / "n1" / "commitlog").iterdir())


def test_restore_accepts_an_existing_secret_and_restarts_an_unfinished_attempt(backup: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "n0" / "commitlog.restoring"
    unfinished.mkdir(parents=True)
    (unfinished / "rubbish").touch()
    (tmp_path / "n0" / "group.secret").touch()
    assert run(backup, f"n0={tmp_path / 'n0'}").exit_code == 0
    assert not (tmp_path / "n0" / "commitlog" / "rubbish").exists()


@pytest.mark.parametrize(
    ("targets", "peers", "reason"),
    [
        (["/data"], PEERS, "is not NODE=DATA_DIR"),
        (["n3=/data"], PEERS, "n3 is not among the peers"),
        (["n0=/data", "n0=/other"], PEERS, "is given twice"),
        (["n0=/data", "n1=/data"], PEERS, "is given twice"),
        (["n0=/data"], "n0", "is not ID@HOST:PORT"),
    ],
)
def test_restore_refuses_contradictory_arguments(backup: Path, targets: list[str], peers: str, reason: str) -> None:
    failed = refusal(run(backup, *targets, peers=peers))
    assert failed.exit_code == EXIT_REFUSED
    assert reason in str(failed)


def test_restore_deletes_its_files_after_a_disk_failure_and_can_run_again(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: RealDisk, fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RealDisk, "fdatasync", failing)
    failed = refusal(run(backup, f"n0={tmp_path / 'n0'}"))
    monkeypatch.undo()
    assert failed.exit_code == EXIT_FAILED
    assert "not restored: " in str(failed)
    assert "Input/output error" in str(failed)
    assert not (tmp_path / "n0").exists()
    assert run(backup, f"n0={tmp_path / 'n0'}").exit_code == 0


@pytest.mark.parametrize("until", [[], ["--until", "1970-01-04T12:00:00Z"]])
def test_damaged_backup_is_refused_and_leaves_no_replica(backup: Path, tmp_path: Path, until: list[str]) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "group.secret").touch()
    with open(backup / "log" / f"{12288:020d}", "r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    failed = refusal(run(backup, f"n0={tmp_path / 'n0'}", f"n1={tmp_path / 'n1'}", *until))
    assert failed.exit_code == EXIT_FAILED
    assert f"not restored: {backup}/log/{12288:020d}: damaged: entry at 12288: checksum of the body" in str(failed)
    assert not (tmp_path / "n0").exists()
    assert [path.name for path in (tmp_path / "n1").iterdir()] == ["group.secret"]


def test_damage_after_the_time_to_restore_is_ignored(backup: Path, tmp_path: Path) -> None:
    with open(backup / "log" / f"{20480:020d}", "r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    assert run(backup, f"n0={tmp_path / 'n0'}").exit_code == EXIT_FAILED
    assert run(backup, f"n0={tmp_path / 'n0'}", "--until", "1970-01-02T12:00:00Z").exit_code == 0
