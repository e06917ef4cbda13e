"""What a failed test tells of the servers that it started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.server_logs import CHARACTERS_MAX, FILES_MAX, LINES_MAX, ends_of_logs


def test_only_server_logs_of_the_failed_test_are_printed(tmp_path: Path) -> None:
    (tmp_path / "cluster0" / "logs").mkdir(parents=True)
    for name in ("cluster0/logs/n0.log", "cluster0/logs/n1.log", "log", "data"):
        (tmp_path / name).write_text(f"line of {name}\n")
    (tmp_path / "empty.log").touch()
    os.utime(tmp_path / "cluster0/logs/n1.log", (1000.0, 1000.0))
    since = (tmp_path / "log").stat().st_mtime - 1
    assert list(ends_of_logs(tmp_path, since)) == [
        ("cluster0/logs/n0.log", "line of cluster0/logs/n0.log"),
        ("log", "line of log"),
    ]


def test_only_the_end_of_long_logs_is_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"".join(b"%d %s\xff\n" % (number, b"x" * 1000) for number in range(1000)))
    [(_, end)] = ends_of_logs(tmp_path, 0.0)
    lines = end.splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) == CHARACTERS_MAX
    assert lines[-1].startswith("999 x")


def test_of_too_many_logs_the_newest_are_shown(tmp_path: Path) -> None:
    for number in range(FILES_MAX + 5):
        (tmp_path / f"{number:02}.log").write_text("words")
        os.utime(tmp_path / f"{number:02}.log", (number, number))
    assert [name for name, _ in ends_of_logs(tmp_path, 0.0)] == [
        f"{number:02}.log" for number in range(5, FILES_MAX + 5)
    ]


def test_failed_test_prints_the_ends_of_server_logs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "def test_it(tmp_path):\n"
        "    (tmp_path / 'n0.log').write_text('refused: the disk is full')\n"
        "    assert not tmp_path\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run([*command, tmp_path / "test_it.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "End of test_it0/n0.log" in done.stdout
    assert "refused: the disk is full" in done.stdout.partition("End of test_it0/n0.log")[2]
