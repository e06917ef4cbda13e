"""Plant known bugs one by one and count the seeds it takes to find each.

A patch whose second line names a workload is for simulated brokers, one whose second line names a test is found by that
test ("Test: tests/unit/..."), the others are for the log. ``python -m chaos.planted`` tries all, ``python -m
chaos.planted double-vote --seeds 50`` one; ``--report FILE`` writes the table, ``--note`` notes
the seeds that found them. The runs use a patched copy of the production code. A bug in Cython is compiled there; the
copy of a bug in Python has no compiled modules, which would serve in its place.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chaos.__main__ import LOG
from raftlog.compiled.building import compile_package
from raftlog.compiled.sources import PURE_PYTHON

PATCHES = Path(__file__).parent
PROJECT = PATCHES.parent.parent
PACKAGES = ("raftlog", "mq", "chaos")
FINDING_SEEDS = PATCHES / "finding_seeds.txt"
"""The first seed that finds a bug, of those that seed 0 does not find: a line is the name of a bug and a seed."""
SEEDS_MAX = 200
UNIT_TEST = "unit test"
_TEST = "Test: "
_UNFINISHED = "*.pyc.*"
"""Bytecode that another process writes at the moment; such a file gets another name before it could be copied."""
_UNINTENDED = re.compile(r"\b(Type|Name|Attribute|Import|Syntax)Error\b")
"""Errors that no patch intends: the code under it has changed."""
_CYTHON = re.compile(r"^\+\+\+ b/((?:mq|raftlog)/compiled)/\S+\.p(?:yx|xi|xd)$", re.MULTILINE)


class PatchRefused(Exception):
    """A patch does not apply to the production code any more, or the patched code fails to run at all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``seeds`` is how many it takes from 0 on to detect ``how``; None if it was not found."""

    name: str
    what: str
    seeds: int | None
    how: str


def names() -> list[str]:
    """All planted bugs."""
    return sorted(path.stem for path in PATCHES.glob("*.patch"))


def what(name: str) -> str:
    """One line about a bug."""
    return (PATCHES / f"{name}.patch").read_text().partition("\n")[0]


def workload(name: str) -> str:
    """The workload that should find a bug, or `UNIT_TEST`."""
    second = (PATCHES / f"{name}.patch").read_text().splitlines()[1]
    return UNIT_TEST if second.startswith(_TEST) else second.removeprefix("Workload: ") or LOG


def unit_test(name: str) -> str:
    """The test that finds a bug whose workload is `UNIT_TEST`, as pytest names it."""
    return (PATCHES / f"{name}.patch").read_text().splitlines()[1].removeprefix(_TEST)


def is_of_clients(name: str) -> bool:
    """Whether a bug is in the client library, or in proxies or filter servers, which are clients of brokers."""
    text = (PATCHES / f"{name}.patch").read_text()
    return any(f"\n+++ b/mq/{package}/" in text for package in ("client", "proxy", "filter_server"))


def compiled_packages(name: str, patches: Path = PATCHES) -> list[str]:
    """Packages with Cython sources that the patch changes, by path; empty for a bug in Python."""
    return sorted(set(_CYTHON.findall((patches / f"{name}.patch").read_text())))


def check(name: str, patches: Path = PATCHES) -> None:
    """Whether the patch applies to the production code, which stays as it is. Raises `PatchRefused`."""
    _apply(patches / f"{name}.patch", PROJECT, "--dry-run")


def _apply(patch: Path, directory: Path, *options: str) -> None:
    done = subprocess.run(
        ["patch", "--strip=1", "--batch", "--forward", "--fuzz=0", *options, f"--directory={directory}"],
        input=patch.read_bytes(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise PatchRefused(f"{patch.stem}: {done.stdout.decode(errors='replace').strip()}")


def plant(name: str, directory: Path, packages: Sequence[str] = PACKAGES, *, patches: Path = PATCHES) -> None:
    """Copy the packages into ``directory``, apply the patch there, and compile what it changes.

    Raises `PatchRefused`; RuntimeError with what the compiler said.
    """
    changed = compiled_packages(name, patches)
    # Libraries of packages that the patch leaves alone are still those of their sources. So is the bytecode of Python,
    # which belongs to the time and the size of a source; a copy keeps both.
    ignored = shutil.ignore_patterns("build-*", _UNFINISHED, *([] if changed else ["*.so"]))
    for package in packages:
        shutil.copytree(PROJECT / package, directory / package, ignore=ignored)
    _apply(patches / f"{name}.patch", directory)
    for package in changed:
        # Such a copy runs for seconds, and to optimize it would take longer.
        compile_package(package.replace("/", "."), directory / package, optimization="-O0")


def _environment(name: str, directory: Path) -> dict[str, str]:
    """For a process that runs the planted code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *_without_project()])}
    environment.pop(PURE_PYTHON, None)
    return environment if compiled_packages(name) else {**environment, PURE_PYTHON: "1"}


def finding_seeds(noted: Path = FINDING_SEEDS) -> dict[str, int]:
    """The noted seeds by name of the bug."""
    lines = (line.split() for line in noted.read_text().splitlines())
    return {name: int(seed) for name, seed in lines}


def note_finding_seeds(findings: Sequence[Finding], noted: Path = FINDING_SEEDS) -> None:
    """Note the seeds that found these bugs; the others keep theirs, and what is no bug any more goes."""
    found = {each.name: each.seeds - 1 for each in findings if each.seeds and workload(each.name) != UNIT_TEST}
    kept = sorted((name, seed) for name, seed in {**finding_seeds(noted), **found}.items() if seed and name in names())
    noted.write_text("".join(f"{name} {seed}\n" for name, seed in kept))


def hunt(name: str, seeds_max: int = SEEDS_MAX, *, first_seed: int | None = None) -> Finding:
    """Run ``first_seed``, if there is one, then seeds from 0 on until the bug is found. Raises `PatchRefused`.

    If ``first_seed`` does not find it, a warning says which one does: the code or the simulation has changed.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        plant(name, Path(directory))
        if workload(name) == UNIT_TEST:
            return _hunt_by_test(name, Path(directory))
        if first_seed is not None and (seen := _hunt_by_seeds(name, Path(directory), first_seed, first_seed)).seeds:
            return seen
        finding = _hunt_by_seeds(name, Path(directory), 0, seeds_max - 1)
    if first_seed is not None and finding.seeds:
        warnings.warn(
            f"{name} is found by seed {finding.seeds - 1} and no longer by {first_seed}, which costs time:"
            f" python -m chaos.planted {name} --note",
            stacklevel=2,
        )
    return finding


def _hunt_by_seeds(name: str, directory: Path, first: int, last: int) -> Finding:
    command = [sys.executable, "-m", "chaos", "--workload", workload(name)]
    command += ["--seeds", f"{first}-{last}", "--first", "--jobs", "1"]
    environment = _environment(name, directory)
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"^seed (\d+): (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        return Finding(name, what(name), None, "")
    if _UNINTENDED.search(found[2]):
        raise PatchRefused(f"{name}: the code does not fit the production code any more: {found[2]}")
    return Finding(name, what(name), int(found[1]) + 1, found[2])


def _hunt_by_test(name: str, directory: Path) -> Finding:
    """Run the one test that must fail; it counts as a single seed."""
    shutil.copytree(PROJECT / "tests", directory / "tests", ignore=shutil.ignore_patterns(_UNFINISHED))
    shutil.copy(PROJECT / "pyproject.toml", directory)
    test = unit_test(name)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=directory,
        env=_environment(name, directory),
        capture_output=True,
        text=True,
        check=False,
    )
    # A bug in Cython may also end the process by a signal.
    is_judged = done.returncode in (0, 1) or (done.returncode < 0 and compiled_packages(name))
    assert is_judged, f"{name}: {done.stdout}{done.stderr}"
    return Finding(name, what(name), 1 if done.returncode else None, test)


def _without_project() -> list[str]:
    return [path for path in sys.path if path and Path(path).resolve() != PROJECT]


def table(findings: Sequence[Finding], seeds_max: int) -> str:
    """A page with the findings."""
    found = [finding.seeds for finding in findings if finding.seeds is not None]
    lines = [
        "# Planted bugs",
        "",
        "Each bug is a patch in `chaos/planted`, applied to a copy of the production code. `python -m chaos.planted`",
        f"runs seeds from 0 until the simulation detects it, at most {seeds_max}.",
        "",
        f"Found: {len(found)} of {len(findings)}"
        + (f"; seeds needed: median {statistics.median(found):g}, maximum {max(found)}." if found else "."),
        "",
        "| bug | | workload | seeds | detected by |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for finding in findings:
        how = re.sub(r" at [\d.]+ s in ", ": ", finding.how)[:110].replace("|", "/")
        lines.append(
            f"| {finding.name} | {finding.what} | {workload(finding.name)} | {finding.seeds or 'not found'} | {how} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt the bugs named; returns 1 if one was not found or its patch does not apply."""
    parser = argparse.ArgumentParser(prog="python -m chaos.planted", description="Find planted mistakes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, metavar="N", help="give up after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table to this file")
    parser.add_argument("--note", action="store_true", help="note the seeds that find them, which tests try first")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no such mistake: {', '.join(unknown)}")
    with ThreadPoolExecutor(options.jobs) as pool:
        findings = []
        for finding in pool.map(lambda name: hunt(name, options.seeds), options.names or names()):
            findings.append(finding)
            sys.stdout.write(f"{finding.name}: {finding.seeds or 'not found'} {finding.how[:150]}\n")
            sys.stdout.flush()
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(table(findings, options.seeds))
    if options.note:
        note_finding_seeds(findings)
    return int(any(finding.seeds is None for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
