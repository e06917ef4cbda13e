"""The simulation is worth what it finds: mistakes are planted in a copy of the production code, and must be caught."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import LOG, LOGS
from chaos.planted.__main__ import (
    PROJECT,
    UNIT_TEST,
    Finding,
    PatchRefused,
    check,
    compiled_packages,
    finding_seeds,
    hunt,
    main,
    names,
    note_finding_seeds,
    plant,
    table,
    unit_test,
    workload,
)

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


LONG_HUNTED = ("kill-forgets-nothing",)
"""About one seed in a hundred finds it: after a change of what a seed does, up to 120 are tried, for 20 s."""


def hunts(names: Iterable[str]) -> list[Any]:
    """`make test-all` hunts all but the longest, and those that are compiled for one test: these are for the night."""

    def marks(name: str) -> list[pytest.MarkDecorator]:
        if name in ALWAYS_HUNTED:
            return []
        is_long = name in LONG_HUNTED or (workload(name) == UNIT_TEST and compiled_packages(name))
        return [pytest.mark.slow, *([pytest.mark.nightly] if is_long else [])]

    return [pytest.param(name, marks=marks(name)) for name in names]


def test_there_are_enough_mistakes() -> None:
    assert sum(workload(name) == LOG for name in names()) >= 16
    assert sum(workload(name) not in (*LOGS, UNIT_TEST) for name in names()) >= 6


@pytest.mark.parametrize("name", names())
def test_mistake_can_still_be_made(name: str) -> None:
    check(name)


def test_a_bug_in_python_is_served_by_no_compiled_module(tmp_path: Path) -> None:
    plant("ack-before-fsync", tmp_path)
    assert not list(tmp_path.rglob("*.so"))


def test_patch_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "no.patch").write_text(
        "Nothing\n\n--- a/raftlog/net/frames.py\n+++ b/raftlog/net/frames.py\n@@ -1,1 +1,1 @@\n-not there\n+nor here\n"
    )
    with pytest.raises(PatchRefused, match="no:"):
        plant("no", tmp_path / "copy", patches=patches)
    with pytest.raises(PatchRefused, match="no:"):
        check("no", patches)


def test_patch_whose_surroundings_have_changed_is_refused(tmp_path: Path) -> None:
    """It might land where it breaks nothing, such as in a docstring."""
    lines = (PROJECT / "raftlog/net/frames.py").read_text().splitlines()[:7]
    lines[0] = "not the first line"
    hunk = "".join(f" {line}\n" for line in lines[:3]) + f"-{lines[3]}\n+changed\n"
    hunk += "".join(f" {line}\n" for line in lines[4:])
    head = "Nothing\n\n--- a/raftlog/net/frames.py\n+++ b/raftlog/net/frames.py\n@@ -1,7 +1,7 @@\n"
    (tmp_path / "fuzzy.patch").write_text(head + hunk)
    with pytest.raises(PatchRefused, match="fuzzy:"):
        check("fuzzy", tmp_path)


def test_noted_seeds_are_of_simulated_mistakes() -> None:
    noted = finding_seeds()
    assert noted.keys() <= {name for name in names() if workload(name) != UNIT_TEST}
    assert all(0 < seed < SEEDS_MAX for seed in noted.values())


def hunted_seeds(monkeypatch: pytest.MonkeyPatch, finding: int) -> list[tuple[int, int]]:
    """The ranges of seeds that hunts run from now on, for a mistake that one seed finds."""
    ran: list[tuple[int, int]] = []

    def hunt_by_seeds(name: str, directory: Path, first: int, last: int) -> Finding:
        ran.append((first, last))
        return Finding(name, "", finding + 1 if first <= finding <= last else None, "")

    monkeypatch.setattr("chaos.planted.__main__.plant", lambda name, directory: None)
    monkeypatch.setattr("chaos.planted.__main__._hunt_by_seeds", hunt_by_seeds)
    return ran


def test_a_hunt_begins_with_the_seed_that_found_the_mistake_before(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = hunted_seeds(monkeypatch, 5)
    assert hunt("double-vote", 20, first_seed=5).seeds == 6
    assert ran == [(5, 5)]


def test_a_mistake_its_seed_no_longer_finds_is_hunted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = hunted_seeds(monkeypatch, 9)
    with pytest.warns(UserWarning, match="double-vote is found by seed 9 and no longer by 5"):
        assert hunt("double-vote", 20, first_seed=5).seeds == 10
    assert hunt("double-vote", 8, first_seed=5).seeds is None
    assert ran == [(5, 5), (0, 19), (5, 5), (0, 7)]


def test_seeds_are_noted_for_what_was_found(tmp_path: Path) -> None:
    noted = tmp_path / "seeds"
    noted.write_text("double-vote 3\nis-no-mistake-any-more 1\nstale-read 2\nlearner-counts 4\n")
    found_anew = [("double-vote", 8), ("stale-read", None), ("learner-counts", 1)]
    note_finding_seeds([Finding(name, "", seeds, "") for name, seeds in found_anew], noted)
    assert finding_seeds(noted) == {"double-vote": 7, "stale-read": 2}


@pytest.fixture(scope="module")
def hunted(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Finding]]:
    """What became of a mistake; all that tests of this session ask for are hunted at once, one on each processor.

    Each hunt begins with the seed that found the mistake before.
    """
    seeds = finding_seeds()
    wanted = [item.callspec.params["name"] for item in request.session.items if "hunted" in _fixtures(item)]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = {name: pool.submit(hunt, name, SEEDS_MAX, first_seed=seeds.get(name)) for name in wanted}
        yield lambda name: findings[name].result()
        pool.shutdown(wait=False, cancel_futures=True)


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


# A noted seed that finds nothing any more costs time, and is no failure.
a_stale_seed_is_shown = pytest.mark.filterwarnings("default:.* no longer by:UserWarning")


@a_stale_seed_is_shown
@pytest.mark.parametrize("name", hunts(QUICKLY_FOUND))
def test_simulation_finds(name: str, hunted: Callable[[str], Finding]) -> None:
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
