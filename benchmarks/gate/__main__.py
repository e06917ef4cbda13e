"""Counts the instructions per message on the hot paths by callgrind, and compares them with a committed baseline.

Time depends on other load of the machine, the number of instructions hardly does. Counts both forms of the broker: with
compiled modules, and in Python alone. Fails if a figure is more than 10 % above benchmarks/gate/baseline.json;
``--update`` rewrites it, which belongs in the commit that changes it.

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

from benchmarks.gate.counting import BY_CALLGRIND, CONTROL, MARK
from benchmarks.gate.verdict import RISE_MAX, DumpUnreadable, instructions_in, judge, per_message
from benchmarks.load.generators import ROOT
from mq.compiled import IS_COMPILED, PURE_PYTHON

BASELINE = Path(__file__).parent / "baseline.json"
EXIT_RISEN, EXIT_CANNOT_TELL = 1, 3
# A processor that others want takes several times as long.
SECONDS_MAX = 1200.0
PYTHON, COMPILED = "python", "compiled"
FORMS = (PYTHON, COMPILED)


class CannotTell(Exception):
    """The instructions could not be counted. The message has the reason and the remedy."""


def interpreter() -> str:
    """Return the build of Python. The figures depend on it: another build has other instructions."""
    compiler = f"{platform.python_compiler()}, {platform.machine()}"
    return f"{platform.python_implementation()} {platform.python_version()}, {compiler}"


def count(form: str, seconds_max: float = SECONDS_MAX) -> dict[str, float]:
    """Run all cases under callgrind. Returns the instructions per message by case. Raises CannotTell."""
    if shutil.which("valgrind") is None or shutil.which(CONTROL) is None:
        raise CannotTell(f"valgrind, or its {CONTROL}, is not installed: apt-get install valgrind")
    if form == COMPILED and not IS_COMPILED:
        raise CannotTell("nothing is compiled: python -m mq.compiled")
    with tempfile.TemporaryDirectory(prefix="raftmq-gate-") as name:
        directory = Path(name)
        counts_file, dumps = directory / "counted.json", directory / "dump"
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--dump-before={MARK}"]
        tool.append(f"--callgrind-out-file={dumps}")
        try:
            process = subprocess.run(
                [*tool, sys.executable, "-m", "benchmarks.gate.cases", str(counts_file), BY_CALLGRIND],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": "0", PURE_PYTHON: "" if form == COMPILED else "1"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds_max,
            )
        except subprocess.TimeoutExpired as error:
            raise CannotTell(f"not done within {seconds_max:g} s") from error
        if process.returncode:
            raise CannotTell(f"the cases ended with exit code {process.returncode}:\n{process.stderr[-2000:]}")
        names = [(str(name), int(messages)) for name, messages in json.loads(counts_file.read_text())]
        parts = [directory / f"dump.{number}" for number in range(1, 2 * len(names) + 1)]
        try:
            return per_message(names, [instructions_in(part.read_text()) for part in parts if part.exists()])
        except DumpUnreadable as error:
            raise CannotTell(str(error)) from error


def main(arguments: Sequence[str] | None = None, path: Path = BASELINE) -> int:
    """Count instructions, and compare them with the baseline at ``path``. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="make bench-gate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help=f"write {path.name} anew")
    parser.add_argument("--form", choices=FORMS, help="count one form only")
    options = parser.parse_args(arguments)
    forms = FORMS if options.form is None else (options.form,)
    baseline: dict[str, Any] = {"interpreter": interpreter(), "figures": {}}
    if path.exists():
        baseline = json.loads(path.read_text())
    if not options.update and baseline["interpreter"] != interpreter():
        print(f"bench-gate: the baseline is of {baseline['interpreter']}, this is {interpreter()}", file=sys.stderr)
        return EXIT_CANNOT_TELL
    figures: dict[str, dict[str, int]] = dict(baseline["figures"])
    is_good = True
    for form in forms:
        try:
            counts = count(form)
        except CannotTell as error:
            print(f"bench-gate: {error}", file=sys.stderr)
            return EXIT_CANNOT_TELL
        print(f"{f'instructions per message, {form}':<38} {'now':>10}   {'baseline':>10}   change")
        for verdict in judge(counts, figures.get(form, {})):
            print(verdict)
            is_good = is_good and verdict.is_good
        figures[form] = {name: round(value) for name, value in counts.items()}
    if options.update:
        path.write_text(json.dumps({"interpreter": interpreter(), "figures": figures}, indent=1) + "\n")
        print(f"wrote {path}")
        return 0
    if not is_good:
        print(
            f"bench-gate: more than {100 * RISE_MAX:.0f} % above the baseline. If that is meant to be: "
            'make bench-gate ARGS="--update", and say in the commit why',
            file=sys.stderr,
        )
        return EXIT_RISEN
    return 0


if __name__ == "__main__":
    sys.exit(main())
