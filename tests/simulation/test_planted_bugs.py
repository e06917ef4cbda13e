"""The simulation is worth what it finds: mistakes are planted in a copy of the production code, and must be caught."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.__main__ import LOG, LOGS
from chaos.planted.__main__ import (
    PROJECT,
    UNIT_TEST,
    BugSearches,
    Finding,
    FindingRun,
    PatchFailed,
    changed_files,
    check,
    compiled_packages,
    finding_seeds,
    hunt,
    main,
    names,
    plant,
    table,
    unit_test,
    workload,
    write_finding_seeds,
)
from chaos.planted.forking_interpreter import WarmPython

SEEDS_MAX = 120
QUICKLY_FOUND = (
    "abstainer-votes",
    "ack-before-fsync",
    "commit-of-older-terms",
    "compiled-ack-before-fsync",
    "compiled-report-before-write",
    "compiled-short-write-from-its-start",
    "compiled-wake-up-lost",
    "cut-although-peers-are-damaged-too",
    "cut-stays-on-disk",
    "cut-without-asking",
    "double-vote",
    "forgotten-rollback",
    "kill-forgets-nothing",
    "lease-too-long",
    "learner-counts",
    "silence-judged-before-input",
    "vote-not-persisted",
)
ALWAYS_HUNTED = ("double-vote", "one-attempt-more")
"""One for the log and one for brokers."""


LONG_HUNTED = ("given-back-is-kept", "kill-forgets-nothing")
"""Few seeds find them, the first one not the same seed in each process: several are tried, for 20 to 30 s."""
COMPILED_HUNTED = ("compiled-ack-before-fsync",)
"""The others are compiled for the night: that takes ten times as long as the run that finds them."""


def hunts(names: Iterable[str]) -> list[Any]:
    """`make test-all` hunts those that a simulation finds quickly: in the log alone, or in brokers by seed 0 or within
    few seconds. The others are for the night, as are those that one named test must notice: it passes each time, and
    notices them as long as neither it nor what it tests changes.
    """
    noted = finding_seeds()

    def marks(name: str) -> list[pytest.MarkDecorator]:
        if name in ALWAYS_HUNTED:
            return []
        is_compiled = bool(compiled_packages(name)) and name not in COMPILED_HUNTED
        is_whole = workload(name) not in LOGS and name in noted and noted[name].seconds is None
        is_long = name in LONG_HUNTED or is_compiled or is_whole or workload(name) == UNIT_TEST
        return [pytest.mark.slow, *([pytest.mark.nightly] if is_long else [])]

    return [pytest.param(name, marks=marks(name)) for name in names]


def test_enough_bugs_are_planted() -> None:
    assert sum(workload(name) == LOG for name in names()) >= 16
    assert sum(workload(name) not in (*LOGS, UNIT_TEST) for name in names()) >= 6


@pytest.mark.parametrize("name", names())
def test_mistake_can_still_be_made(name: str) -> None:
    check(name)


def test_bug_in_python_is_served_by_no_compiled_module(tmp_path: Path) -> None:
    plant("ack-before-fsync", tmp_path)
    assert not list(tmp_path.rglob("*.so"))


def test_unfitting_patch_is_refused(tmp_path: Path) -> None:
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "no.patch").write_text(
        "Nothing\n\n--- a/raftlog/net/frames.py\n+++ b/raftlog/net/frames.py\n@@ -1,1 +1,1 @@\n-not there\n+nor here\n"
    )
    with pytest.raises(PatchFailed, match="no:"):
        plant("no", tmp_path / "copy", patches=patches)
    with pytest.raises(PatchFailed, match="no:"):
        check("no", patches)


def test_patch_with_changed_context_is_refused(tmp_path: Path) -> None:
    """It might land where it breaks nothing, such as in a docstring."""
    lines = (PROJECT / "raftlog/net/frames.py").read_text().splitlines()[:7]
    lines[0] = "not the first line"
    hunk = "".join(f" {line}\n" for line in lines[:3]) + f"-{lines[3]}\n+changed\n"
    hunk += "".join(f" {line}\n" for line in lines[4:])
    head = "Nothing\n\n--- a/raftlog/net/frames.py\n+++ b/raftlog/net/frames.py\n@@ -1,7 +1,7 @@\n"
    (tmp_path / "fuzzy.patch").write_text(head + hunk)
    with pytest.raises(PatchFailed, match="fuzzy:"):
        check("fuzzy", tmp_path)


def test_noted_seeds_are_of_simulated_mistakes() -> None:
    noted = finding_seeds()
    assert noted.keys() <= {name for name in names() if workload(name) != UNIT_TEST}
    assert all(0 <= seed < SEEDS_MAX and (seed or seconds) for seed, seconds in noted.values())


COLD = cast("WarmPython", None)
"""For hunts that run nothing."""


def hunted_seeds(monkeypatch: pytest.MonkeyPatch, finding: int, shortly: float = inf) -> list[tuple[Any, ...]]:
    """The ranges of seeds that hunts run from now on, with their seconds, for a mistake that one seed finds in whole
    runs, and in others that take at least so long.
    """
    ran: list[tuple[Any, ...]] = []

    def hunt_by_seeds(
        python: WarmPython, name: str, directory: Path, first: int, last: int, seconds: float | None
    ) -> Finding:
        ran.append((first, last, seconds))
        finds = first <= finding <= last and (seconds is None or seconds >= shortly)
        return Finding(name, "", finding + 1 if finds else None, "", seconds)

    monkeypatch.setattr("chaos.planted.__main__.plant", lambda name, directory: None)
    monkeypatch.setattr("chaos.planted.__main__._hunt_by_seeds", hunt_by_seeds)
    return ran


def test_hunt_begins_with_the_run_that_found_the_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = hunted_seeds(monkeypatch, 5, 2.0)
    assert hunt("double-vote", 20, python=COLD, first=FindingRun(5, 2.0)).seeds == 6
    assert hunt("double-vote", 20, python=COLD, first=FindingRun(5)).seeds == 6
    assert ran == [(5, 5, 2.0), (5, 5, None)]


def test_mistake_its_seed_no_longer_finds_is_hunted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = hunted_seeds(monkeypatch, 9)
    with pytest.warns(UserWarning, match="double-vote is found by seed 9 and no longer by 5"):
        assert hunt("double-vote", 20, python=COLD, first=FindingRun(5)).seeds == 10
    assert hunt("double-vote", 8, python=COLD, first=FindingRun(5, 4.0)).seeds is None
    assert ran == [(5, 5, None), (0, 19, None), (5, 5, 4.0), (0, 7, None)]


def test_shortest_run_finding_the_bug_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = hunted_seeds(monkeypatch, 2, 4.0)
    found = hunt("double-vote", 20, python=COLD, short_runs=((2.0, 4), (4.0, 4), (8.0, 3)))
    assert (found.seeds, found.seconds) == (3, 4.0)
    assert ran == [(0, 3, 2.0), (0, 3, 4.0)]


def test_finding_seeds_are_noted_per_mistake(tmp_path: Path) -> None:
    noted = tmp_path / "seeds"
    noted.write_text("double-vote 3\nis-no-mistake-any-more 1\nstale-read 2\nlearner-counts 4\nlease-too-long 9 4\n")
    found_anew = [("double-vote", 8, 2.5), ("stale-read", None, None), ("learner-counts", 1, None)]
    write_finding_seeds([Finding(name, "", seeds, "", seconds) for name, seeds, seconds in found_anew], noted)
    expected = {"double-vote": FindingRun(7, 2.5), "lease-too-long": FindingRun(9, 4.0), "stale-read": FindingRun(2)}
    assert finding_seeds(noted) == expected


def test_planted_mistake_stays_in_its_copy(tmp_path: Path) -> None:
    """The copy shares files with the project where it can."""
    before = {name: (PROJECT / name).read_bytes() for name in changed_files("double-vote")}
    plant("double-vote", tmp_path)
    assert before
    for name, content in before.items():
        assert (PROJECT / name).read_bytes() == content
        assert (tmp_path / name).read_bytes() != content


def test_warm_interpreter_runs_each_copy_with_its_own_modules(tmp_path: Path) -> None:
    with WarmPython() as python:
        for number in (1, 2):
            copy = tmp_path / str(number)
            copy.mkdir()
            (copy / "planted_here.py").write_text(
                f"import os, sys\nprint({number}, sys.argv[1:], os.environ['KEPT'], os.getcwd())\nsys.exit({number})\n"
            )
            environment = {"PYTHONPATH": str(copy), "KEPT": f"kept {number}"}
            done = python.run("planted_here", ["--option", "x"], copy, environment)
            assert done.returncode == number, done.stderr
            assert done.stdout == f"{number} ['--option', 'x'] kept {number} {copy}\n"
        failed = python.run("no_such_module", [], tmp_path, {"PYTHONPATH": ""})
        assert failed.returncode == 1
        assert "no_such_module" in failed.stderr


def test_warm_interpreter_reports_signals_of_its_runs(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with WarmPython() as python:
        assert python.run("killed", [], tmp_path, {"PYTHONPATH": str(tmp_path)}).returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def hunted(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Finding]]:
    """What became of a mistake; all that tests of this session ask for are hunted at once, one on each processor.

    Each hunt begins with the run that found the mistake before.
    """
    noted = finding_seeds()
    wanted = [item.callspec.params["name"] for item in request.session.items if "hunted" in _fixtures(item)]  # type: ignore[attr-defined]
    with BugSearches(os.cpu_count() or 1) as hunters:
        findings = {name: hunters.hunt(name, SEEDS_MAX, noted.get(name)) for name in wanted}
        yield lambda name: findings[name].result()


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


# A noted seed that finds nothing any more costs time, and is no failure.
a_stale_seed_is_shown = pytest.mark.filterwarnings("default:.* no longer by:UserWarning")


@a_stale_seed_is_shown
@pytest.mark.parametrize("name", hunts(QUICKLY_FOUND))
def test_simulation_finds_each_planted_bug(name: str, hunted: Callable[[str], Finding]) -> None:
    finding = hunted(name)
    assert finding.seeds is not None, f"{name} went unnoticed in {SEEDS_MAX} seeds"
    assert name in table([finding], SEEDS_MAX)


@a_stale_seed_is_shown
@pytest.mark.parametrize("name", hunts(name for name in names() if workload(name) not in (*LOGS, UNIT_TEST)))
def test_simulated_brokers_find(name: str, hunted: Callable[[str], Finding]) -> None:
    assert hunted(name).seeds is not None, f"{name} went unnoticed in {SEEDS_MAX} seeds"


@pytest.mark.parametrize("name", hunts(name for name in names() if workload(name) == UNIT_TEST))
def test_named_test_finds(name: str, hunted: Callable[[str], Finding]) -> None:
    assert hunted(name).seeds is not None, f"{unit_test(name)} does not notice {name}"


def test_named_tests_exist() -> None:
    for name in names():
        if workload(name) == UNIT_TEST:
            path, _, function = unit_test(name).partition("::")
            function = function.rpartition("::")[2].partition("[")[0]
            assert f"def {function}(" in (PROJECT / path).read_text(), f"{name} names {unit_test(name)}"


def test_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-mistake"])
    assert "no such mistake" in capsys.readouterr().err
