"""Plant known bugs one by one and count the seeds it takes to find each.

A patch whose second line names a workload is for simulated brokers, one whose second line names a test is found by that
test ("Test: tests/unit/..."), the others are for the log. ``python -m chaos.planted`` tries all, ``python -m
chaos.planted double-vote --seeds 50`` one; ``--report FILE`` writes the table, ``--note`` looks for the shortest run
that finds each and notes it. The runs use a patched copy of the production code. A bug in Cython is compiled there; the
copy of a bug in Python has no compiled modules, which would run instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from chaos.__main__ import LOG
from chaos.planted.forking_interpreter import WarmPython
from chaos.report import written_at
from raftlog.compiled.building import compile_package
from raftlog.compiled.sources import PURE_PYTHON

PATCHES = Path(__file__).parent
PROJECT = PATCHES.parent.parent
PACKAGES = ("raftlog", "mq", "checkers", "chaos")
FINDING_SEEDS = PATCHES / "finding_seeds.txt"
"""The runs that find bugs, for bugs that a whole run of seed 0 does not find at once. A line is the name of a bug, a
seed, and, for a run that is shorter than usual, its seconds of faults.
"""
SEEDS_MAX = 200
_SHORT_RUNS = ((2.0, 4), (4.0, 4), (8.0, 3))
"""Seconds of faults and numbers of seeds to try before whole runs, to find a short run that can be noted."""
UNIT_TEST = "unit test"
_TEST = "Test: "
_UNFINISHED = "*.pyc.*"
"""Bytecode that another process writes at the moment; such a file gets another name before it could be copied."""
_UNINTENDED = re.compile(r"\b(Type|Name|Attribute|Import|Syntax)Error\b")
"""Errors that no patch intends: the code under it has changed."""
_CHANGED = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)
_CYTHON = re.compile(r"^\+\+\+ b/((?:mq|raftlog)/compiled)/\S+\.p(?:yx|xi|xd)$", re.MULTILINE)


class PatchFailed(Exception):
    """A patch no longer applies to the production code, or the patched code fails to run at all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a search for a bug. ``seeds`` counts the seeds up to the one that showed ``how``; None: not found.

    ``seconds``: the length of faults in each run; None for the usual one.
    """

    name: str
    what: str
    seeds: int | None
    how: str
    seconds: float | None = None


class FindingRun(NamedTuple):
    """A run that finds a bug; ``seconds`` as in `Finding`."""

    seed: int
    seconds: float | None = None


def names() -> list[str]:
    """Return the names of all planted bugs."""
    return sorted(path.stem for path in PATCHES.glob("*.patch"))


def what(name: str) -> str:
    """Return the line that describes a bug."""
    return (PATCHES / f"{name}.patch").read_text().partition("\n")[0]


def workload(name: str) -> str:
    """Return the workload that should find a bug, or `UNIT_TEST`."""
    second = (PATCHES / f"{name}.patch").read_text().splitlines()[1]
    return UNIT_TEST if second.startswith(_TEST) else second.removeprefix("Workload: ") or LOG


def unit_test(name: str) -> str:
    """Return the test that finds a bug without a workload, as pytest names it."""
    return (PATCHES / f"{name}.patch").read_text().splitlines()[1].removeprefix(_TEST)


def is_of_clients(name: str) -> bool:
    """Return whether a bug is in the client library, a proxy or a filter server, which are clients of brokers."""
    text = (PATCHES / f"{name}.patch").read_text()
    return any(f"\n+++ b/mq/{package}/" in text for package in ("client", "proxy", "filter_server"))


def compiled_packages(name: str, patches: Path = PATCHES) -> list[str]:
    """Return the packages whose Cython sources the patch changes, by path; empty for a bug in Python."""
    return sorted(set(_CYTHON.findall((patches / f"{name}.patch").read_text())))


def changed_files(name: str, patches: Path = PATCHES) -> list[str]:
    """Return the paths of the files that a patch changes."""
    return _CHANGED.findall((patches / f"{name}.patch").read_text())


def check(name: str, patches: Path = PATCHES) -> None:
    """Check that the patch applies to the production code, without changing it. Raises `PatchFailed`."""
    _apply(patches / f"{name}.patch", PROJECT, "--dry-run")


def _apply(patch: Path, directory: Path, *options: str) -> None:
    process = subprocess.run(
        ["patch", "--strip=1", "--batch", "--forward", "--fuzz=0", *options, f"--directory={directory}"],
        input=patch.read_bytes(),
        capture_output=True,
        check=False,
    )
    if process.returncode:
        raise PatchFailed(f"{patch.stem}: {process.stdout.decode(errors='replace').strip()}")


def plant(name: str, directory: Path, packages: Sequence[str] = PACKAGES, *, patches: Path = PATCHES) -> None:
    """Copy the packages into ``directory``, apply the patch there, and compile the changed modules.

    Raises `PatchFailed`; RuntimeError with the compiler's output.
    """
    packages_changed = compiled_packages(name, patches)
    # Libraries of packages that the patch leaves alone are still those of their sources. So is the bytecode of Python,
    # which belongs to the time and the size of a source; a copy keeps both.
    ignore = shutil.ignore_patterns("build-*", _UNFINISHED, *([] if packages_changed else ["*.so"]))
    for package in packages:
        shutil.copytree(PROJECT / package, directory / package, ignore=ignore, copy_function=_link)
    for path in changed_files(name, patches):
        (directory / path).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the patch is refused
            shutil.copy2(PROJECT / path, directory / path)
    _apply(patches / f"{name}.patch", directory)
    for package in packages_changed:
        # Such a copy runs for seconds, and to optimize it would take longer.
        compile_package(package.replace("/", "."), directory / package, optimization="-O0")


def _link(source: str, target: str) -> None:
    """Link a file, in a tenth of the time of a copy. Copy files that may change: patches, compiled modules."""
    if not source.endswith(".so"):
        with contextlib.suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _environment(name: str, directory: Path) -> dict[str, str]:
    """Return the environment of a process that runs the planted code."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *_without_project()])}
    environment.pop(PURE_PYTHON, None)
    return environment if compiled_packages(name) else {**environment, PURE_PYTHON: "1"}


def finding_seeds(path: Path = FINDING_SEEDS) -> dict[str, FindingRun]:
    """Read the noted runs, by name of the bug."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: FindingRun(int(seed), *map(float, seconds)) for name, seed, *seconds in lines}


def write_finding_seeds(findings: Sequence[Finding], path: Path = FINDING_SEEDS) -> None:
    """Write the runs that found these bugs. Other bugs keep theirs; runs of former bugs are deleted."""
    new_runs = {
        each.name: FindingRun(each.seeds - 1, each.seconds)
        for each in findings
        if each.seeds and workload(each.name) != UNIT_TEST
    }
    all_runs = sorted({**finding_seeds(path), **new_runs}.items())
    lines = [
        f"{name} {seed}" + ("" if seconds is None else f" {seconds:g}")
        for name, (seed, seconds) in all_runs
        if name in names() and (seed or seconds)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))


def hunt(
    name: str,
    seeds_max: int = SEEDS_MAX,
    *,
    python: WarmPython,
    first: FindingRun | None = None,
    short_runs: Sequence[tuple[float, int]] = (),
) -> Finding:
    """Try the run ``first``, if there is one, then whole runs of seeds from 0 on until the bug is found.

    Before the whole runs, it tries ``short_runs``: seconds, and the number of seeds from 0 on. If ``first`` does not
    find the bug, a warning says which seed does: the code or the simulation has changed. Raises `PatchFailed`.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as path:
        directory = Path(path)
        plant(name, directory)
        if workload(name) == UNIT_TEST:
            return _hunt_by_test(python, name, directory)
        if first is not None:
            first_finding = _hunt_by_seeds(python, name, directory, first.seed, first.seed, first.seconds)
            if first_finding.seeds:
                return first_finding
        for seconds, seeds in short_runs:
            first_finding = _hunt_by_seeds(python, name, directory, 0, seeds - 1, seconds)
            if first_finding.seeds:
                return first_finding
        finding = _hunt_by_seeds(python, name, directory, 0, seeds_max - 1, None)
    if first is not None and finding.seeds:
        warnings.warn(
            f"{name} is found by seed {finding.seeds - 1} and no longer by {first.seed}, which costs time:"
            f" python -m chaos.planted {name} --note",
            stacklevel=2,
        )
    return finding


class BugSearches:
    """Hunts several bugs at once, each in an interpreter of its own. A context manager that ends the interpreters."""

    def __init__(self, count: int) -> None:
        self._own = threading.local()
        self._warm: list[WarmPython] = []
        self._pool = ThreadPoolExecutor(count)

    def _python(self, name: str) -> WarmPython:
        """Return this thread's interpreter, which has imported the project unless the bug is in a compiled module."""
        kind = "compiled" if compiled_packages(name) else "python"
        own: dict[str, WarmPython] = vars(self._own)
        if kind not in own:
            plain = {**os.environ, PURE_PYTHON: "1"}
            own[kind] = WarmPython() if kind == "compiled" else WarmPython(PROJECT, plain)
            self._warm.append(own[kind])
        return own[kind]

    def hunt(
        self,
        name: str,
        seeds_max: int,
        first: FindingRun | None = None,
        short_runs: Sequence[tuple[float, int]] = (),
    ) -> Future[Finding]:
        def begin() -> Finding:
            return hunt(name, seeds_max, python=self._python(name), first=first, short_runs=short_runs)

        return self._pool.submit(begin)

    def __enter__(self) -> Self:
        """Return the searches."""
        return self

    def __exit__(self, *_: object) -> None:
        """Begin no further hunt, and wait for the running ones."""
        self._pool.shutdown(cancel_futures=True)
        for python in self._warm:
            python.close()


def _hunt_by_seeds(
    python: WarmPython, name: str, directory: Path, first: int, last: int, seconds: float | None
) -> Finding:
    arguments = ["--workload", workload(name), "--seeds", f"{first}-{last}", "--first", "--jobs", "1"]
    if seconds is not None:
        arguments += ["--seconds", f"{seconds:g}"]
    process = python.run("chaos", arguments, directory, _environment(name, directory), changed_files(name))
    match = re.search(r"^seed (\d+): (.*)$", process.stdout, re.MULTILINE)
    if match is None:
        assert process.returncode == 0, f"{name}: {process.stdout}{process.stderr}"
        return Finding(name, what(name), None, "")
    if _UNINTENDED.search(match[2]):
        raise PatchFailed(f"{name}: the code no longer fits the production code: {match[2]}")
    return Finding(name, what(name), int(match[1]) + 1, match[2], seconds)


def _hunt_by_test(python: WarmPython, name: str, directory: Path) -> Finding:
    """Run the one test that must fail, and count it as a single seed."""
    shutil.copytree(
        PROJECT / "tests", directory / "tests", ignore=shutil.ignore_patterns(_UNFINISHED), copy_function=_link
    )
    shutil.copy(PROJECT / "pyproject.toml", directory)
    test = unit_test(name)
    # Modules that the interpreter has imported before are not plugins whose assertions matter.
    warning_options = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    arguments = ["-q", "-p", "no:cacheprovider", *warning_options, test]
    process = python.run("pytest", arguments, directory, _environment(name, directory), changed_files(name))
    # A bug in Cython may also end the process by a signal.
    is_failed = process.returncode == 1 and re.search(r"^\d+ failed", process.stdout, re.MULTILINE)
    is_judged = process.returncode == 0 or is_failed or (process.returncode < 0 and compiled_packages(name))
    assert is_judged, f"{name}: {process.stdout}{process.stderr}"
    return Finding(name, what(name), 1 if process.returncode else None, test)


def _without_project() -> list[str]:
    return [path for path in sys.path if path and Path(path).resolve() != PROJECT]


def table(findings: Sequence[Finding], seeds_max: int) -> str:
    """Return a page with the findings."""
    seed_counts = [finding.seeds for finding in findings if finding.seeds is not None]
    lines = [
        "# Planted bugs",
        "",
        "Each bug is a patch in `chaos/planted`, applied to a copy of the production code. `python -m chaos.planted`",
        f"runs seeds from 0 until the simulation detects it, at most {seeds_max}.",
        "",
        *written_at(),
        f"Found: {len(seed_counts)} of {len(findings)}"
        + (
            f"; seeds needed: median {statistics.median(seed_counts):g}, maximum {max(seed_counts)}."
            if seed_counts
            else "."
        ),
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
    """Hunt the named bugs. Return 1 if a bug was not found or a patch does not apply, else 0."""
    parser = argparse.ArgumentParser(prog="python -m chaos.planted", description="Find planted mistakes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, metavar="N", help="give up after so many")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="how many at once")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table to this file")
    parser.add_argument("--note", action="store_true", help="note short runs that find them, which tests try first")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no such mistake: {', '.join(unknown)}")
    short_runs = _SHORT_RUNS if options.note else ()
    findings = []
    with BugSearches(options.jobs) as hunters:
        hunts = [hunters.hunt(name, options.seeds, short_runs=short_runs) for name in options.names or names()]
        for under_way in hunts:
            finding = under_way.result()
            findings.append(finding)
            sys.stdout.write(f"{finding.name}: {finding.seeds or 'not found'} {finding.how[:150]}\n")
            sys.stdout.flush()
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(table(findings, options.seeds))
    if options.note:
        write_finding_seeds(findings)
    return int(any(finding.seeds is None for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
