"""Tests whether the harness detects bugs: runs brokers with the bugs of `chaos/planted`, and records the outcome.

``python -m jepsen.planted_bugs`` runs all rows of `ROWS` and `SCENARIO_ROWS`, one after the other; with names of bugs
or scenarios, such as ``stale-read slow-node``, only these. ``--tries 3`` repeats an unsuccessful run with the next two
seeds; ``--write`` updates their lines in the tables of docs/jepsen.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.planted.__main__ import names, what
from checkers.history import decode_events
from checkers.verdict import EXIT_BROKEN, EXIT_CANNOT_RUN
from jepsen.deployments import default_backend
from jepsen.judge import VERDICT
from jepsen.run import HISTORY

PAGE = Path(__file__).parent.parent / "docs" / "jepsen.md"
BEGIN, END = "<!-- written by python -m jepsen.planted_bugs -->\n", "<!-- end -->\n"
SCENARIOS_BEGIN = "<!-- scenarios, written by python -m jepsen.planted_bugs -->\n"
HEAD = "| bug | | run | tries | detected as | after |\n|---|---|---|---:|---|---:|\n"


SCENARIOS_HEAD = "| scenario | bug | run | tries | detected as | after |\n|---|---|---|---:|---|---:|\n"


class Row(NamedTuple):
    """A planted bug, and the run that should detect it: workload, faults and their seconds, or a scenario."""

    mistake: str
    workload: str
    nemesis: str
    seconds: int = 15
    scenario: str = ""

    @property
    def name(self) -> str:
        """The text in the first column of the table."""
        return self.scenario or self.mistake

    @property
    def options(self) -> list[str]:
        """The options of raftmq-jepsen for this run."""
        what = ["scenario", self.scenario] if self.scenario else ["run", "--nemesis", self.nemesis]
        return [*what, "--workload", self.workload, "--time", str(self.seconds)]


ROWS = (
    Row("ack-before-fsync", "log", "power-loss"),
    Row("acknowledged-comes-again", "pop", "calm"),
    Row("archive-serves-unverified-block", "archive", "store-rot", 30),
    Row("commit-backwards-ignored", "register", "calm", 10),
    Row("compiled-ack-before-fsync", "log", "power-loss"),
    Row("compiled-receive-loses-last-bytes", "log", "calm", 10),
    Row("compiled-reply-to-first-sender", "log", "calm", 10),
    Row("commit-without-end", "transactions", "kill"),
    Row("delay-too-short", "delays", "calm", 10),
    Row("delayed-answered-before-commit", "delays", "kill", 40),
    Row("delivered-without-mark", "delays", "kill", 40),
    Row("ended-while-ending", "late-ends", "calm"),
    Row("failed-sync-forgotten", "log", "disk-error"),
    Row("filter-results-of-first-run", "filtered", "kill"),
    Row("follower-serves-uncommitted", "log", "slow-disk", 45),
    Row("given-back-answered-at-once", "retries", "kill"),
    Row("lite-order-not-kept", "lite", "calm"),
    Row("locks-end-with-their-leader", "order", "kill", 40),
    Row("majority-too-small", "log", "partition"),
    Row("marks-not-in-snapshot", "delays", "kill"),
    Row("one-attempt-more", "retries", "calm", 10),
    Row("ordered-pop-too-soon", "ordered-pop", "calm"),
    Row("outcome-told-wrong", "log", "partition", 40),
    Row("page-cache-trusted", "log", "power-loss"),
    Row("popped-and-forgotten", "pop", "kill"),
    Row("popped-comes-too-soon", "pop", "calm", 25),
    Row("proxy-hides-too-shortly", "grpc", "calm"),
    Row("read-before-opening-entry", "register", "kill", 40),
    Row("reads-unverified", "log", "rot", 20),
    Row("recall-races-delivery", "delays", "calm"),
    Row("repeat-under-way-unnoticed", "numbered", "calm", 10),
    Row("sequences-not-in-snapshot", "numbered", "kill"),
    Row("stale-read", "log", "pause", 40),
    Row("timeout-taken-for-refusal", "queue", "pause", 30),
    Row("uncommitted-rows-served", "bulk", "slow-disk", 45),
)
"""The planted bugs and their runs. With shorter faults some of them escape; those are in the table as well."""

SCENARIO_ROWS = (
    Row("damaged-checkpoint-stops", "log", "", 40, "every-file"),
    Row("majority-too-small", "log", "", 20, "members-under-faults"),
    Row("half-elects", "log", "", 20, "peer-remove"),
    Row("waits-for-the-slowest", "log", "", 20, "slow-node"),
    Row("ack-before-fsync", "log", "", 15, "staggered-power-loss"),
    Row("jump-ahead-deletes", "log", "", 15, "wrong-clock"),
)
"""One for each scenario that has no row of its own kind of fault above."""


def try_row(row: Row, *, backend: str, seed: int, tries: int, store: Path) -> str:
    """Run brokers with the bug until one of ``tries`` seeds, from ``seed`` on, detects it. Returns a row of the table.

    Its last cell is the duration of the last run in seconds, from the first client to the final reads.
    """
    anomalies, took = "", "-"
    for attempt in range(1, tries + 1):
        anomalies, took = _run(row, backend=backend, seed=seed + attempt - 1, store=store)
        if anomalies:
            break
    run = f"*{row.workload}*, {row.nemesis}, {row.seconds} s"
    if row.scenario:
        bug, run = f"`{row.mistake}`", f"*{row.workload}*, {row.seconds} s"
        return f"| `{row.scenario}` | {bug} | {run} | {attempt} | {anomalies or 'no'} | {took} |"
    return f"| `{row.mistake}` | {what(row.mistake)} | {run} | {attempt} | {anomalies or 'no'} | {took} |"


def _run(row: Row, *, backend: str, seed: int, store: Path) -> tuple[str, str]:
    """Run one row; returns the anomalies that it found ("" if none), and its duration."""
    command = [*row.options, "--seed", str(seed), "--backend", backend]
    before = set(store.glob("*"))
    process = subprocess.run(
        [sys.executable, "-m", "jepsen", *command, "--planted", row.mistake, "--store", str(store)],
        capture_output=True,
        text=True,
        check=False,
    )
    directories = set(store.glob("*")) - before
    # Several runs may share a store; the newest of this workload is ours.
    directory = max(
        (path for path in directories if f"-{row.workload}-{row.scenario or row.nemesis}" in path.name), default=None
    )
    if process.returncode == EXIT_CANNOT_RUN or directory is None:
        lines = (process.stdout + process.stderr).strip().splitlines()
        raise SystemExit(f"{row.mistake}: the run ended with {process.returncode}: {lines[-1] if lines else ''}")
    with (directory / HISTORY).open("rb") as history:
        events = [event.t for event in decode_events(history)]
    took = f"{(events[-1] - events[0]) / 1e9:.0f} s"
    if process.returncode != EXIT_BROKEN:
        return "", took
    verdict = json.loads((directory / VERDICT).read_text())
    anomalies = [f"`{anomaly}`" for result in verdict["results"] for anomaly in result["anomalies"]]
    return ", ".join(dict.fromkeys(anomalies)), took


def put_lines(page: str, lines: Sequence[str], *, begin: str = BEGIN, head: str = HEAD) -> str:
    """Insert the lines into a table of the page. They replace lines with the same first cell. Raises ValueError."""
    before, _, rest = page.partition(begin)
    table, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"the page has no {begin!r} that is followed by {END!r}")
    rows = {line.split("|")[1].strip(" `"): line for line in [*table.splitlines()[head.count("\n") :], *lines]}
    return f"{before}{begin}{head}" + "".join(f"{rows[name]}\n" for name in sorted(rows)) + END + after


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected rows. Returns 1 if the harness did not detect a bug."""
    parser = argparse.ArgumentParser(
        prog="python -m jepsen.planted_bugs", description="Find planted mistakes with real runs."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which mistakes or scenarios; all by default")
    parser.add_argument("--backend", default=default_backend())
    parser.add_argument("--seed", type=int, default=3, help="of the first try")
    parser.add_argument("--tries", type=int, default=1, help="seeds to try before a mistake counts as not noticed")
    parser.add_argument("--store", type=Path, default=Path("store"), help="where directories of runs are made")
    parser.add_argument("--write", action="store_true", help=f"put the lines into {PAGE.name}")
    options = parser.parse_args(arguments)
    rows = {row.name: row for row in (*ROWS, *SCENARIO_ROWS)}
    if unknown := sorted(set(options.names) - rows.keys()):
        parser.error(f"no row for {', '.join(unknown)}; there are {', '.join(rows)}")
    assert {row.mistake for row in rows.values()} <= set(names()), "a row is about no patch"
    lines = []
    for name in options.names or rows:
        tries = max(1, options.tries)
        line = try_row(rows[name], backend=options.backend, seed=options.seed, tries=tries, store=options.store)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        lines.append(line)
        if options.write:
            table = {"begin": SCENARIOS_BEGIN, "head": SCENARIOS_HEAD} if rows[name].scenario else {}
            PAGE.write_text(put_lines(PAGE.read_text(), [line], **table))
    return int(any("| no |" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
