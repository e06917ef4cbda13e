"""`raftmq table`: what is refused before Spark starts, and how the driver's lines become output and exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mq.cli import topic_tables
from mq.cli.errors import CommandFailed
from spark.tables import installed
from spark.tables.commits import Commit
from spark.tables.pace import GAVE_UP, UNTIL_STDIN_CLOSES
from spark.tables.parquet_directory import ParquetDirectory
from spark.tables.pipeline import read_pipeline

PIPELINE = "namesrv: 127.0.0.1:1\ntopic: T\ntable: {format: parquet, location: t}\n"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(topic_tables.app, [str(each) for each in arguments])


def failure(*arguments: str | Path) -> CommandFailed:
    found = run(*arguments).exception
    assert isinstance(found, CommandFailed), found
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a driver print these lines and end with this exit code."""

    def install(*lines: dict[str, Any] | str, code: int = 0) -> None:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        program = f"import sys; print({text!r}); sys.exit({code})"

        def start(*_: Any) -> subprocess.Popen[str]:
            return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)

        monkeypatch.setattr(topic_tables, "start", start)

    return install


@pytest.mark.parametrize("command", ["run", "backfill", "status", "verify", "compact"])
def test_wrong_file_is_refused_by_every_command(command: str, file: Path) -> None:
    file.write_text(PIPELINE.replace("parquet", "parket"))
    failed = failure(command, file)
    assert f"{file}:3: table.format must be parquet or delta or iceberg" in str(failed)
    assert failed.exit_code == 2


def test_missing_spark_names_the_remedy(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "version", no_version)
    assert str(failure("run", file)) == "PySpark is not installed: pip install 'raftmq[tables]'"


COMMIT = {"commit": 1, "messages": 900, "dead": 9, "seconds": 2.0, "rate": 450, "left": 100, "total": 900}
DONE = {"done": True, "messages": 900, "dead": 9, "position": "a:0 900"}


def test_progress_is_shown_for_people_and_for_programs(file: Path, driver: Any) -> None:
    driver({"opened": "t", "commit": 0}, "a line of Spark", COMMIT, DONE)
    assert run("run", file).stdout.splitlines() == [
        "starting Spark on local[*] ...",
        "t: continues after commit 0",
        "commit 1: 900 messages, 9 of them dead letters in 2.0 s (450/s), 100 left",
        "done: 900 messages, 9 of them dead letters; the table has the messages before a:0 900",
    ]
    lines = run("run", file, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"opened": "t", "commit": 0}, COMMIT, DONE]


@pytest.mark.parametrize("code", [1, 2])
def test_command_returns_error_and_exit_code_of_the_driver(code: int, file: Path, driver: Any) -> None:
    driver(COMMIT, {"error": "stopped at an offset", "code": code}, code=code)
    failed = failure("run", file)
    assert (str(failed), failed.exit_code) == ("stopped at an offset", code)


def test_death_of_the_driver_is_a_failure(file: Path, driver: Any) -> None:
    driver(COMMIT, code=9)
    assert "Spark ended with exit code 9" in str(failure("run", file))
    driver("not a result")
    assert "Spark ended without a result" in str(failure("verify", file))


def test_driver_that_aborted_its_commit_is_a_failure(file: Path, driver: Any) -> None:
    driver(COMMIT, code=GAVE_UP)
    failed = failure("run", file)
    assert (failed.exit_code, str(failed).partition(":")[0]) == (1, "the commit that was being made was given up")


def test_second_signal_aborts_the_commit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: dict[int, Any] = {}
    seen: list[str] = []

    class Driver:
        stdin = io.StringIO()

        def __init__(self, arguments: list[str], **options: Any) -> None:
            assert (arguments[-1], options["stdin"]) == (UNTIL_STDIN_CLOSES, subprocess.PIPE)

        def terminate(self) -> None:
            seen.append("terminated")

    monkeypatch.setattr("mq.cli.topic_tables.subprocess.Popen", Driver)
    monkeypatch.setattr("mq.cli.topic_tables.signal.signal", handlers.__setitem__)
    monkeypatch.setattr("spark.installed.missing", lambda: None)
    monkeypatch.setattr("spark.tables.installed.installed_spark", lambda: "4.3.0")
    topic_tables.start("run", file, read_pipeline(file), "local[1]", "1g")
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert (seen, Driver.stdin.closed) == (["terminated"], False)
    handlers[signal.SIGINT](signal.SIGINT, None)
    assert (seen, Driver.stdin.closed) == (["terminated"], True)


def test_driver_ends_with_its_parent_process() -> None:
    program = (
        "import time; from spark.tables.pace import end_with_input as end; end(); print(1, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"1\n"
        process.stdin.close()
        assert process.wait(60) == GAVE_UP


def test_table_that_differs_from_its_topic_fails(file: Path, driver: Any) -> None:
    queue = {
        "broker_name": "a",
        "queue_id": 0,
        "begin": 0,
        "end": 5,
        "messages": 5,
        "rows_expected": 5,
        "rows_found": 4,
        "differences": [{"queue_offset": 3, "what": "the row is missing"}],
    }
    driver({"equal": False, "commit": 3, "queues": [{**queue, "equal": False}]}, code=1)
    found = run("verify", file)
    assert found.stdout == (
        "a:0 offsets 0 to 4: 5 messages, 5 rows expected, 4 found: DIFFERENT\n  offset 3: the row is missing\n"
    )
    assert str(found.exception) == "the table differs from its topic"
    driver({"equal": True, "commit": 3, "queues": []})
    assert run("verify", file).stdout == "the table and its topic are equal up to commit 3\n"


def test_status_of_the_table_of_another_pipeline_is_refused(file: Path) -> None:
    position = {"v": 1, "cluster": "c", "topics": {"Other": {"id": {}, "q": {"a:0": 4}}}}
    commit = Commit("t/Other", 0, position, position, 0, 0, 0, "r", {}, position)
    directory = ParquetDirectory(file.parent / "t")
    directory.open()
    directory.commit(commit, directory.staging_of(commit))
    directory.close()
    failed = failure("status", file)
    assert "belongs to the pipeline 't' from the topic 'Other'" in str(failed)
    assert failed.exit_code == 2
