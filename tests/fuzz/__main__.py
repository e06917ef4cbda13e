"""``python -m tests.fuzz``: mutate inputs that reach new code, until time is up or both forms of a parser differ.

``make fuzz`` runs it with the compiled modules instrumented for coverage and sanitizers, and `tests/fuzz/edges.c`
loaded before them. Without these, inputs are mutated blindly. Exit code 1: an input is in the directory of findings.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mq.compiled import IS_COMPILED
from tests.fuzz.mutations import first_inputs, mutated
from tests.fuzz.targets import TARGETS

CORPUS: Final = Path(__file__).parent / "corpus"


class Edges:
    """Which edges of the instrumented modules were taken; always the same number where nothing is instrumented."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(None)
            self.begin: Callable[[], object] = library.fuzz_begin
            self.news: Callable[[], int] = library.fuzz_news
            self.count: Callable[[], int] = library.fuzz_edges
        except AttributeError:
            self.begin, self.news, self.count = (lambda: None), (lambda: 0), (lambda: 0)


class Fuzzer:
    """Runs inputs of one target, and keeps those that reached something new.

    Args:
        target: which parser.
        edges: tells what an input reached.
        findings: directory for inputs on which both forms differ. The present input is there while it runs, so a crash
            of the process leaves it.
        rng: chooses mutations.
    """

    def __init__(self, target: str, edges: Edges, findings: Path, rng: random.Random) -> None:
        self.target = target
        self.edges = edges
        self.findings = findings
        self.rng = rng
        self.kept: list[bytes] = []
        self.runs = 0
        findings.mkdir(parents=True, exist_ok=True)
        self._current = findings / f"{target}-running"
        self._file = self._current.open("wb", buffering=0)

    def run(self, data: bytes) -> None:
        """Run one input, and keep it if it reached something new. Raises what the target raises."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(data)
        self.edges.begin()
        TARGETS[self.target](data)
        self.runs += 1
        if self.edges.news():
            self.kept.append(data)

    def search(self, seconds: float) -> bool:
        """Mutate what was kept for ``seconds``; false as soon as there is a finding, which is printed and stored."""
        end = time.monotonic() + seconds
        data = b""
        try:
            for data in self._begin_with():
                self.run(data)
            self.kept = self.kept or first_inputs(self.target)
            while time.monotonic() < end:
                # Inputs that were kept last reached new code last.
                index = min(self.rng.randrange(len(self.kept)), self.rng.randrange(len(self.kept) * 2))
                data = mutated(self.target, self.kept[-1 - index], self.kept, self.rng)
                self.run(data)
        except Exception:
            path = self.findings / f"{self.target}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            traceback.print_exc()
            print(f"{self.target}: both forms differ, or one failed, on {path}", file=sys.stderr)
            return False
        return True

    def _begin_with(self) -> list[bytes]:
        stored = sorted((path.read_bytes() for path in (CORPUS / self.target).glob("*")), key=len)
        return first_inputs(self.target) + stored

    def close(self) -> None:
        """Forget the present input."""
        self._file.close()
        self._current.unlink()


def main() -> int:
    """Fuzz each target; 0 if no finding was made."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="default: all")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--grow", type=Path, help="replace the corpus in this directory by what reached something new")
    parser.add_argument("--input", type=Path, help="run this input of the target alone")
    arguments = parser.parse_args()
    if not IS_COMPILED:
        print("raftmq: nothing to fuzz: the modules are not compiled", file=sys.stderr)
        return 3
    targets = arguments.target or list(TARGETS)
    edges = Edges()
    if arguments.input is not None:
        TARGETS[targets[0]](arguments.input.read_bytes())
        return 0
    for target in targets:
        fuzzer = Fuzzer(target, edges, arguments.findings, random.Random(arguments.seed))
        agreed = fuzzer.search(arguments.seconds / len(targets))
        fuzzer.close()
        if not agreed:
            return 1
        print(f"{target}: {fuzzer.runs} inputs, {len(fuzzer.kept)} reached something new, {edges.count()} edges so far")
        if arguments.grow is not None:
            _replace(arguments.grow / target, fuzzer.kept)
    return 0


def _replace(directory: Path, inputs: list[bytes]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    for data in inputs:
        (directory / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
