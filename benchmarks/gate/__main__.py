"""Instructions per message on the hot paths, counted by callgrind, against a committed baseline.

Time depends on other load of the machine, the number of instructions hardly does. Fails if a figure is more than 10 %
above benchmarks/gate/baseline.json; ``--update`` rewrites it, which belongs in the commit that changes it.

Exit codes: 0 good, 1 a figure has risen too much, 3 not measurable here. ``python -m benchmarks.gate`` (``make
bench-gate``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gate.counting import MARK
from benchmarks.gate.verdict import RISE_MAX, DumpUnreadable, instructions_in, judge, per_message
from benchmarks.workers import ROOT
from mq.compiled import PURE_PYTHON

BASELINE = Path(__file__).parent / "baseline.json"
EXIT_RISEN, EXIT_CANNOT_TELL = 1, 3
SECONDS_MAX = 600.0


class CannotTell(Exception):
    """Nothing was counted; the message has the reason and the remedy."""


def interpreter() -> str:
    """What the figures depend on besides the code: another build of Python has other instructions."""
    compiled = f"{platform.python_compiler()}, {platform.machine()}"
    return f"{platform.python_implementation()} {platform.python_version()}, {compiled}"


def count(seconds_max: float = SECONDS_MAX) -> dict[str, float]:
    """Run all cases under callgrind; instructions per message by name. Raises CannotTell."""
    if shutil.which("valgrind") is None:
        raise CannotTell("valgrind is not installed: apt-get install valgrind")
    with tempfile.TemporaryDirectory(prefix="raftmq-gate-") as name:
        directory = Path(name)
        counted, dumps = directory / "counted.json", directory / "dump"
        tool = ["valgrind", "-q", "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={dumps}"]
        try:
            done = subprocess.run(
                [*tool, sys.executable, "-m", "benchmarks.gate.cases", str(counted)],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": "0", PURE_PYTHON: "1"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds_max,
            )
        except subprocess.TimeoutExpired as error:
            raise CannotTell(f"not done within {seconds_max:g} s") from error
        if done.returncode:
            raise CannotTell(f"the cases ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        names = [(str(name), int(messages)) for name, messages in json.loads(counted.read_text())]
        parts = [directory / f"dump.{number}" for number in range(1, 2 * len(names) + 1)]
        try:
            return per_message(names, [instructions_in(part.read_text()) for part in parts if part.exists()])
        except DumpUnreadable as error:
            raise CannotTell(str(error)) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and judge; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="make bench-gate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help=f"write {BASELINE.relative_to(ROOT)} anew")
    options = parser.parse_args(arguments)
    baseline: dict[str, Any] = {"interpreter": interpreter(), "figures": {}}
    if BASELINE.exists():
        baseline = json.loads(BASELINE.read_text())
    if not options.update and baseline["interpreter"] != interpreter():
        print(f"bench-gate: the baseline is of {baseline['interpreter']}, this is {interpreter()}", file=sys.stderr)
        return EXIT_CANNOT_TELL
    try:
        figures = count()
    except CannotTell as error:
        print(f"bench-gate: {error}", file=sys.stderr)
        return EXIT_CANNOT_TELL
    print(f"{'instructions per message':<34} {'now':>10}   {'baseline':>10}   change")
    verdicts = judge(figures, baseline["figures"])
    for verdict in verdicts:
        print(verdict)
    if options.update:
        written = {"interpreter": interpreter(), "figures": {name: round(value) for name, value in figures.items()}}
        BASELINE.write_text(json.dumps(written, indent=1) + "\n")
        print(f"wrote {BASELINE.relative_to(ROOT)}")
        return 0
    if not all(verdict.is_good for verdict in verdicts):
        print(
            f"bench-gate: more than {100 * RISE_MAX:.0f} % above the baseline. If that is meant to be: "
            'make bench-gate ARGS="--update", and say in the commit why',
            file=sys.stderr,
        )
        return EXIT_RISEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
