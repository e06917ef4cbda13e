"""Simulate groups from the command line.

``python -m chaos --seed 42 --trace`` repeats one run, ``python -m chaos --seeds 0-999`` tries a range.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from chaos.cluster import Outcome, simulate
from chaos.schedule import SAFETY_SECONDS, draw_scenario


def _seed_range(text: str) -> range:
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 0-199")
    return range(int(first), int(last) + 1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _run(seed: int, seconds: float, *, trace: bool) -> Outcome:
    outcome = simulate(draw_scenario(seed, seconds), trace=_say if trace else None)
    if outcome.broke is not None:
        length = "" if seconds == SAFETY_SECONDS else f" --seconds {seconds:g}"
        _say(f"seed {seed}: {outcome.broke}\n  repeat it: python -m chaos --seed {seed}{length} --trace")
    return outcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description="Raft groups in simulated time.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this seed")
    which.add_argument("--seeds", type=_seed_range, metavar="A-B", help="run these seeds and sum up")
    parser.add_argument("--seconds", type=float, default=SAFETY_SECONDS, help="simulated seconds of faults")
    parser.add_argument("--trace", action="store_true", help="print every event")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        outcome = _run(options.seed, options.seconds, trace=options.trace)
        if not options.trace:
            _say(str(replace(draw_scenario(options.seed, options.seconds), faults=())))
        _say(str(outcome))
        return int(outcome.broke is not None)
    started = time.process_time()
    outcomes = [_run(seed, options.seconds, trace=options.trace) for seed in options.seeds]
    broken = [outcome.seed for outcome in outcomes if outcome.broke is not None]
    _say(
        f"{len(outcomes)} seeds, {sum(o.steps for o in outcomes)} events, "
        f"{sum(o.acknowledged for o in outcomes)} acknowledged of {sum(o.committed for o in outcomes)} committed "
        f"entries, {sum(o.terms for o in outcomes)} terms, {time.process_time() - started:.1f} s CPU; "
        + (f"broken: {broken}" if broken else "nothing broke")
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
