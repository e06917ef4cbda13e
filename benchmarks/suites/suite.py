"""Measures a set of cases in one run, and writes the section of its page."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.generators import GeneratorFailed
from benchmarks.procfs import load_average
from benchmarks.report.run_record import RunRecord
from benchmarks.suites.case_load import Arguments, Measure
from benchmarks.suites.figures import Figure, table
from mq.cli.errors import run_trio
from mq.client.errors import ClientError
from mq.local_cluster import ServersFailed

FAILURES = (ServersFailed, ClientError, GeneratorFailed, subprocess.CalledProcessError, OSError)
"""The errors that a case may raise; figures that it had noted before are kept."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark. ``name``: as in ``make bench-NAME``. ``cases``: in the order of their execution."""

    name: str
    about: str | None
    cases: Mapping[str, Measure]

    @property
    def marks(self) -> tuple[str, str]:
        """The marks around the section of the suite's page."""
        mark = f"<!-- measured by `make bench-{self.name}`:"
        return f"{mark} begin -->", f"{mark} end -->"

    def parse_arguments(self, arguments: Sequence[str]) -> Arguments:
        """Parse the command line into a plan. Ends the process on a wrong one."""
        parser = argparse.ArgumentParser(
            prog=f"make bench-{self.name}", description=self.about, formatter_class=argparse.RawTextHelpFormatter
        )
        parser.add_argument(
            "--case", action="append", default=[], choices=sorted(self.cases), help="only this case (repeatable)"
        )
        parser.add_argument("--quick", action="store_true", help="a hundredth of the data; the page stays as it is")
        parser.add_argument("--windows", type=int, default=5, help="measured windows of a load")
        parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
        parser.add_argument("--warmup", type=float, default=4.0, help="seconds before the first window")
        parser.add_argument("--limit", type=float, default=600.0, help="seconds for all cases")
        parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
        parser.add_argument("--no-write", action="store_true", help="leave the page as it is")
        args = parser.parse_args(arguments, namespace=Arguments())
        if args.quick:
            args.windows, args.seconds, args.warmup = 3, 1.0, 1.0
        if args.quick or args.case:
            args.no_write = True  # the table is of one run
        return args

    async def run(self, args: Arguments, directory: Path, figures: list[Figure]) -> list[str]:
        """Run all selected cases, even after one has failed. Returns a sentence about each failure."""
        errors, case = list[str](), ""

        def note(figure: Figure) -> None:
            figures.append(figure)
            print(figure, flush=True)

        with trio.move_on_after(args.limit) as scope:
            for case, measure in self.cases.items():
                if args.case and case not in args.case:
                    continue
                begin = trio.current_time()
                try:
                    await measure(args, directory / case, note)
                except FAILURES as error:
                    errors.append(f"The case {case} failed: {error}")
                    print(f"bench: {errors[-1]}{kept_logs(directory / case)}", file=sys.stderr)
                shutil.rmtree(directory / case, ignore_errors=True)
                print(f"({case}: {trio.current_time() - begin:.0f} s)", flush=True)
        if scope.cancelled_caught:
            errors.append(f"The case {case} had not finished after {args.limit:g} s.")
            print(f"bench: {errors[-1]}{kept_logs(directory / case)}", file=sys.stderr)
        return errors

    def main(self) -> None:
        """Measure, print, and write the page in docs/benchmarks, and benchmarks/results/."""
        args = self.parse_arguments(sys.argv[1:])
        before = load_average()
        figures: list[Figure] = []
        with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=args.dir) as directory:
            errors = run_trio(partial(self.run, args, Path(directory), figures))
        if figures and not args.no_write:
            self._write(args, figures, errors, before)
        if errors:
            sys.exit(1)

    def _write(self, args: Arguments, figures: list[Figure], errors: Sequence[str], before: float) -> None:
        record = RunRecord(self.name)
        record.keep(loadAverage=before, figures=[asdict(each) for each in figures])
        section = table(figures, load_average=before, **record.about)
        if errors:
            section += "\n\nIncomplete. " + " ".join(errors)
        record.publish(section, self.marks)


def kept_logs(directory: Path) -> str:
    """Copy the servers' logs out of a directory that is about to be removed. Returns where they are, or ""."""
    directories = [path for path in directory.rglob("logs") if path.is_dir()]
    if not directories:
        return ""
    copy = Path(tempfile.mkdtemp(prefix="raftmq-bench-logs-"))
    for number, path in enumerate(directories):
        shutil.copytree(path, copy / str(number))
    return f" (the logs of the servers are in {copy})"
