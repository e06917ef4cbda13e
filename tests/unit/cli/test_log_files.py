"""`raftmq log verify` and `dump` on directories of stopped nodes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.cli.errors import EXIT_FAILED, EXIT_REFUSED, CommandFailed
from raftlog import RealDisk
from raftlog.consensus.confchange import encode_conf
from raftlog.consensus.types import ConfState, NodeId
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import CONFIG, NORMAL, SegmentLog
from raftlog.segment.note_names import ABSTAINING


def opened(path: Path) -> SegmentLog:
    return SegmentLog.open(str(path / "commitlog"), cluster_id="c", node_id="n1", segment_bytes=4096, disk=RealDisk())


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    log = opened(tmp_path)
    log.append(CONFIG, LogIndex(1), Term(1), encode_conf(ConfState((NodeId("n1"), NodeId("n2")), (), (NodeId("n3"),))))
    for index in range(2, 100):
        log.append(NORMAL, LogIndex(index), Term(1), b"hello \x00 world" * 4)
    log.submit(1)
    log.close()
    return tmp_path


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["log", *map(str, args)])


def refusal(result: Result) -> CommandFailed:
    assert isinstance(result.exception, CommandFailed), result.output
    return result.exception


def test_verify_reports_an_intact_log(data_dir: Path) -> None:
    for directory in (data_dir, data_dir / "commitlog"):
        result = run("verify", directory)
        assert result.exit_code == 0
        assert "good up to index 99" in result.output
        assert result.output.endswith("intact\n")


def test_damaged_log_ends_with_code_1(data_dir: Path) -> None:
    with open(data_dir / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    result = run("verify", data_dir)
    assert refusal(result).exit_code == EXIT_FAILED
    assert "repairable from peers" in result.output
    found = json.loads(run("verify", data_dir, "--json").output)
    assert found["verdict"] == "damaged"
    assert len(found["damaged"]) == 1
    assert "damaged" in run("dump", data_dir).output


def test_log_commands_refuse_a_running_node(data_dir: Path) -> None:
    log = opened(data_dir)
    for command in ("verify", "dump"):
        failed = refusal(run(command, data_dir))
        assert failed.exit_code == EXIT_REFUSED
        assert "in use by process" in str(failed)
    log.close()


def test_allow_vote_lets_an_abstaining_replica_vote(data_dir: Path) -> None:
    log = opened(data_dir)
    log.set_note(ABSTAINING, b"1")
    log.set_note("other", b"kept")
    log.submit(1)
    assert "in use by process" in str(refusal(run("allow-vote", data_dir, "--accept-loss")))
    log.close()
    said = run("verify", data_dir).output
    assert "abstains: it may have lost" in said
    assert f"raftmq log allow-vote {data_dir} --accept-loss" in said
    found = json.loads(run("verify", data_dir, "--json").output)
    assert (found["abstaining"], found["last_index"], found["last_term"]) == (True, 99, 1)
    assert found["begins_at"] == 0 < found["ends_at"]
    failed = refusal(run("allow-vote", data_dir))
    assert failed.exit_code == EXIT_REFUSED
    assert "its log ends with entry 99 of term 1" in str(failed)
    assert json.loads(run("verify", data_dir, "--json").output)["abstaining"], "trusted without --accept-loss"
    result = run("allow-vote", data_dir, "--accept-loss")
    assert result.exit_code == 0
    assert result.output.endswith("it votes again\n")
    assert "abstains" not in run("verify", data_dir).output
    assert run("allow-vote", data_dir, "--accept-loss").output.endswith("no change\n")
    told = json.loads(run("allow-vote", data_dir, "--accept-loss", "--json").output)
    assert told == {"directory": str(data_dir / "commitlog"), "was_abstaining": False, "last_index": 99, "last_term": 1}
    log = opened(data_dir)
    assert dict(log.notes) == {"other": b"kept"}
    assert log.last_index == 99
    log.close()


def test_old_command_names_print_only_json_on_standard_output(data_dir: Path) -> None:
    for command, arguments, field in (("trust", ["--accept-loss"], "last_term"), ("term", [], "last_entry_term")):
        result = run(command, data_dir, *arguments, "--json")
        assert json.loads(result.stdout)[field] == 1
        assert "deprecated" in result.stderr


def test_allow_vote_refuses_a_damaged_log(data_dir: Path) -> None:
    with open(data_dir / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    assert "start the node" in str(refusal(run("allow-vote", data_dir, "--accept-loss")))


def test_verify_refuses_a_directory_without_a_log(tmp_path: Path) -> None:
    assert "the directory contains no log" in str(refusal(run("verify", tmp_path)))
    assert refusal(run("verify", tmp_path / "absent")).exit_code == EXIT_REFUSED


def test_cut_discards_entries_behind_the_damage_only_with_consent(data_dir: Path) -> None:
    assert "there is no damage" in str(refusal(run("discard-damaged", data_dir, "--accept-loss")))
    with open(data_dir / "commitlog" / f"{0:020d}", "r+b") as file:
        for position in (1000, 3000):
            file.seek(position)
            file.write(b"\xff")
    before = {path.name: path.read_bytes() for path in (data_dir / "commitlog").iterdir()}
    rows = json.loads(run("dump", data_dir, "--json").output)
    first = next(at for at, row in enumerate(rows) if row.get("note") == "damaged")
    said = str(refusal(run("discard-damaged", data_dir)))
    assert f"would end with entry {rows[first - 1]['index']}, before the damage" in said
    assert (
        f"Intact entries from index {rows[first + 1]['index']} on would be lost, too (the log is damaged in 2" in said
    )
    assert {path.name: path.read_bytes() for path in (data_dir / "commitlog").iterdir()} == before
    copy = shutil.copytree(data_dir, data_dir.parent / "copy")
    assert "the replica abstains" in run("discard-damaged", copy, "--accept-loss").output
    told = json.loads(run("discard-damaged", data_dir, "--accept-loss", "--json").output)
    found = json.loads(run("verify", data_dir, "--json").output)
    assert (found["verdict"], found["abstaining"]) == ("intact", True)
    assert 0 < found["last_index"] < 99
    assert (told["last_index"], told["abstaining"]) == (found["last_index"], True)


def test_verify_exits_with_2_if_both_vote_slots_are_bad(data_dir: Path) -> None:
    (data_dir / "commitlog" / "meta").write_bytes(b"garbage" * 1000)
    assert refusal(run("verify", data_dir)).exit_code == EXIT_REFUSED
    assert "no slot" in str(refusal(run("dump", data_dir)))


def test_dump_as_json(data_dir: Path) -> None:
    rows = json.loads(run("dump", data_dir, "--json", "--count", "3").output)
    assert [row["index"] for row in rows] == [1, 2, 3]
    assert (rows[0]["kind"], rows[0]["note"]) == ("config", "voters n1 n2, learners n3")
    assert rows[1]["position"] == rows[0]["size"]
    [row] = json.loads(run("dump", data_dir, "--json", "--from", "98", "--bodies", "--count", "1").output)
    assert row["index"] == 98
    assert "hello . world" in row["body"]
    assert "config" in run("dump", data_dir).output


def test_terms_are_printed_for_programs(data_dir: Path) -> None:
    def term(*options: str) -> dict[str, object]:
        result = run("fix-term", data_dir, *options, "--json")
        assert result.exit_code == 0, result.exception
        document: dict[str, object] = json.loads(result.output)
        return document

    found = term()
    assert (found["term"], found["term_before"], found["last_entry_term"], found["plausible"]) == (0, 0, 1, True)
    changed = term("--raise-to", str(2**50))
    assert (changed["term"], changed["term_before"]) == (2**50, 0)
    assert (term()["term"], term()["plausible"]) == (2**50, False)
    assert term("--lower", "--all-stopped")["term"] == found["lowered_term"]
