"""The page of bugs that were found: its commits exist, and its tests and commands name what there was."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "track-record.md"
COMMIT = re.compile(r"^`([0-9a-f]{8})`")
ENTRIES_MIN = 25


class Entry(NamedTuple):
    """A line of the table."""

    bug: str
    introduced: str
    found_by: str
    command: str
    at: str
    seen: str
    fixed: str


def entries() -> list[Entry]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return [Entry(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def commit(cell: str) -> str:
    found = COMMIT.match(cell)
    assert found is not None, f"{cell!r} begins with no commit"
    return found[1]


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def has_history() -> bool:
    """A checkout may be shallow, or no repository at all."""
    return git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"


def test_page_has_many_entries_and_none_twice() -> None:
    fixes = [commit(entry.fixed) for entry in entries()]
    assert len(fixes) == len(set(fixes)) >= ENTRIES_MIN


def test_track_record_lists_the_newest_fixes_first() -> None:
    dates = [entry.fixed.rpartition(", ")[2] for entry in entries()]
    assert dates == sorted(dates, reverse=True)


def test_observed_bug_has_a_command() -> None:
    for entry in entries():
        assert entry.seen.startswith(("yes", "no")), entry
        if entry.seen.startswith("yes"):
            assert entry.command.startswith("`"), entry


@pytest.mark.skipif(not has_history(), reason="no history of this project here")
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: commit(entry.fixed))
def test_commits_of_an_entry_exist_in_their_order(entry: Entry) -> None:
    introduced, at, fixed = map(commit, (entry.introduced, entry.at, entry.fixed))
    assert git("rev-parse", "--verify", "--quiet", f"{fixed}^").stdout.startswith(at)
    assert git("merge-base", "--is-ancestor", introduced, at).returncode == 0, f"{introduced} is not before {at}"


@pytest.mark.skipif(not has_history(), reason="no history of this project here")
@pytest.mark.parametrize("entry", entries(), ids=lambda entry: commit(entry.fixed))
def test_named_tests_were_added_with_their_fix(entry: Entry) -> None:
    if not entry.command.startswith("`pytest "):
        return
    path, _, name = entry.command.strip("`").removeprefix("pytest ").partition("::")
    content = git("show", f"{commit(entry.fixed)}:{path}").stdout
    assert f"def {name}(" in content if name else content, f"{path} of the fix has no {name}"
