"""Judges the directory of a run: reads the history, runs the checkers, writes verdict.json and the page."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import msgspec

from checkers import CHECKERS, OF_SCENARIOS
from checkers.history import History, HistoryDamaged, decode_events, gather
from checkers.verdict import Verdict, of_unfinished
from jepsen.report.page import page
from jepsen.report.rare_states import met_in_history
from jepsen.run import HISTORY

VERDICT = "verdict.json"
REPORT = "report.html"


class NotARun(Exception):
    """The directory contains no valid history; the message says why."""


class VerdictNotWritten(Exception):
    """The verdict could not be written to the directory of the run; the message says why."""

    def __init__(self, verdict: Verdict, directory: Path, error: OSError) -> None:
        super().__init__(f"the verdict cannot be written to {directory}: {error.strerror}")
        self.verdict = verdict


def read_history(directory: Path) -> History:
    """Read the history of a stored run. Raises NotARun."""
    path = directory / HISTORY
    try:
        with path.open("rb") as lines:
            return gather(decode_events(lines))
    except FileNotFoundError:
        raise NotARun(f"there is no {HISTORY} in {directory}") from None
    except HistoryDamaged as damaged:
        raise NotARun(f"{path}: {damaged}") from damaged
    except OSError as error:
        raise NotARun(f"{path} cannot be read: {error.strerror}") from error


def states_met(directory: Path) -> Counter[str]:
    """Return how often a stored run reached each rare state. Raises NotARun."""
    history = read_history(directory)
    counts = met_in_history(history)
    for event in history.of_run("met"):
        counts.update(event.v)
    return counts


def judge(directory: Path) -> Verdict:
    """Judge a stored run, and write the verdict into its directory. Raises NotARun, VerdictNotWritten."""
    # A history is millions of objects that live to the end of this call: garbage collection would find nothing.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _judge(directory)
    finally:
        if collects:
            gc.enable()


def _judge(directory: Path) -> Verdict:
    history = read_history(directory)
    workload = str(history.plan.get("workload", ""))
    if workload not in CHECKERS:
        raise NotARun(f"{directory / HISTORY} does not say which workload it is of; the run ended before it began")
    scenario = str(history.plan.get("scenario", ""))
    results = [check(history) for check in (*OF_SCENARIOS.get(scenario, ()), *CHECKERS[workload])]
    if not history.is_complete:
        results = list(map(of_unfinished, results))
    verdict = Verdict(results, history.plan)
    text = msgspec.json.format(msgspec.json.encode({"valid": verdict.valid, **msgspec.to_builtins(verdict)}), indent=1)
    try:
        (directory / VERDICT).write_bytes(text + b"\n")
        (directory / REPORT).write_text(page(history, verdict))
    except OSError as error:
        raise VerdictNotWritten(verdict, directory, error) from error
    return verdict
