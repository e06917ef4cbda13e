"""Simulate groups from the command line.

``python -m chaos --seed 42 --trace`` repeats one run, ``--seeds 0-999`` tries a range, ``--hours 50`` runs seeds until
so much time was simulated. ``--workload delay`` runs whole brokers with clients of one kind instead of the log alone.
``--form python`` runs the references of the compiled modules, which give the same events.
It runs from a checkout; the wheel does not contain it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from chaos import report
from chaos.broker_sim import schedule as broker_schedule
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.schedule import draw_broker_scenario
from chaos.broker_sim.workloads import WORKLOADS
from chaos.log_sim import busy_host
from chaos.log_sim.busy_host import draw_busy_host
from chaos.log_sim.cluster import RunResult, outcome_of, simulate
from chaos.log_sim.schedule import SAFETY_SECONDS, Scenario, draw_scenario
from chaos.report import Totals
from mq.compiled import ALL_COMPILED, PURE_PYTHON
from raftlog.consensus.trace import Trace

LOG = "log"
"""The workload of the log alone."""
BUSY_HOST = "busy-host"
"""The log alone, on hosts that take the CPU away from processes."""
LOGS = (LOG, BUSY_HOST)
FORMER_NAMES = {"everyday": "mixed"}
"""Former names of workloads; they work for one release."""
COMPILED, PYTHON = FORMS = ("compiled", "python")
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def _seed_range(text: str) -> range:
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 0-199")
    return range(int(first), int(last) + 1)


def regressions(workload: str = LOG) -> list[int]:
    """Return the seeds of ``workload`` in `REGRESSIONS`. A line there is a seed, or a workload's name and a seed."""
    lines = (line.partition("#")[0].split() for line in REGRESSIONS.read_text().splitlines())
    names_and_seeds = [words if len(words) == 2 else [LOG, *words] for words in lines if words]
    return [int(seed) for name, seed in names_and_seeds if name == workload]


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def simulate_seed(
    seed: int, seconds: float | None = None, workload: str = LOG, trace: Callable[[str], object] | None = None
) -> RunResult:
    """Run one seed of a workload; without ``seconds``, for the workload's usual time."""
    if workload in LOGS:
        return simulate(_log_scenario(seed, seconds, workload), trace=trace)
    return outcome_of(broker_cluster(seed, seconds, workload, trace))


def _log_scenario(seed: int, seconds: float | None, workload: str) -> Scenario:
    if workload == BUSY_HOST:
        return draw_busy_host(seed, seconds or busy_host.SAFETY_SECONDS)
    return draw_scenario(seed, seconds or SAFETY_SECONDS)


def broker_cluster(
    seed: int, seconds: float | None, workload: str, trace: Callable[[str], object] | None = None
) -> BrokerCluster:
    """Build the simulated brokers of a seed, without running them."""
    scenario = draw_broker_scenario(seed, workload, seconds or broker_schedule.SAFETY_SECONDS)
    return BrokerCluster(WORKLOADS[workload].adapt(scenario), WORKLOADS[workload], trace)


def run_seed(seed: int, seconds: float | None = None, workload: str = LOG) -> tuple[RunResult, float]:
    """Run one seed without a trace. Return its result and the CPU seconds that it took."""
    start = time.process_time()
    return simulate_seed(seed, seconds, workload), time.process_time() - start


def _run_all(
    seeds: Iterable[int], seconds: float | None, workload: str, jobs: int
) -> Generator[tuple[RunResult, float], None, None]:
    """Yield the results of runs as they complete. Closing the iterator stops the workers."""
    if jobs == 1:
        yield from (run_seed(seed, seconds, workload) for seed in seeds)
        return
    seed_iterator = iter(seeds)
    pending_futures: set[Future[tuple[RunResult, float]]] = set()
    # The collector need not look at modules again and again.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"), initializer=gc.freeze)
    try:
        while True:
            for seed in itertools.islice(seed_iterator, 4 * jobs - len(pending_futures)):
                pending_futures.add(pool.submit(run_seed, seed, seconds, workload))
            if not pending_futures:
                return
            futures, pending_futures = wait(pending_futures, return_when=FIRST_COMPLETED)
            yield from sorted((future.result() for future in futures), key=lambda result: result[0].seed)
    finally:
        pool.shutdown(cancel_futures=True)


def how_to_repeat(seed: int, seconds: float | None, workload: str) -> str:
    """Return the command that repeats a run with a trace."""
    kind = "" if workload == LOG else f" --workload {workload}"
    length = "" if seconds is None else f" --seconds {seconds:g}"
    return f"python -m chaos{kind} --seed {seed}{length} --trace"


def _run_one(seed: int, seconds: float | None, workload: str, *, trace: bool, ndjson: Path | None) -> int:
    scenario = _log_scenario(seed, seconds, workload)
    print_event = _print_line if trace else None
    if ndjson is None:
        outcome = simulate(scenario, trace=print_event)
    else:
        with ndjson.open("w") as file:
            events = Trace(lambda line: print(line, file=file))
            outcome = simulate(scenario, core_class=events.core_class(), trace=print_event)
    if not trace:
        _print_line(str(replace(scenario, faults=())))
    _print_line(str(replace(outcome, asked={}, happened={})))
    return int(outcome.broke is not None)


def _run_one_with_brokers(seed: int, seconds: float | None, workload: str, *, trace: bool, history: Path | None) -> int:
    cluster = broker_cluster(seed, seconds, workload, _print_line if trace else None)
    outcome = outcome_of(cluster)
    if history is not None:
        history.write_bytes(cluster.workload.history_lines())
    if not trace:
        _print_line(str(replace(cluster.plan, faults=())))
    _print_line(str(replace(outcome, asked={}, happened={})))
    return int(outcome.broke is not None)


def _run_many(
    options: argparse.Namespace, seeds: Iterable[int], has_time: Callable[[Totals], bool], command: str
) -> int:
    totals, cpu_seconds = Totals(options.workload), 0.0
    with contextlib.closing(_run_all(seeds, options.seconds, options.workload, options.jobs)) as results:
        for outcome, cost in results:
            totals.add(outcome)
            cpu_seconds += cost
            if outcome.broke is not None:
                _print_line(f"seed {outcome.seed}: {outcome.broke}")
                _print_line(f"  repeat it: {how_to_repeat(outcome.seed, options.seconds, options.workload)}")
            if not has_time(totals) or (options.first and totals.broken):
                break
    _print_line(totals.summary(cpu_seconds))
    if totals.never_hit and totals.seeds >= 100:
        _print_line(f"points that never happened: {', '.join(totals.never_hit)}")
    if options.report is not None:
        report.write(options.report, totals, cpu_seconds, command)
    return int(bool(totals.broken))


def form() -> str:
    """Return the form of the modules that this process runs: `COMPILED` or `PYTHON`."""
    return COMPILED if ALL_COMPILED else PYTHON


def _run_other_form(arguments: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Run the same command in another process with the other form of the modules: a process has only one form."""
    environment = {name: value for name, value in os.environ.items() if name != PURE_PYTHON}
    if form() == COMPILED:
        environment[PURE_PYTHON] = "1"
    elif PURE_PYTHON not in os.environ:
        parser.error("nothing is compiled: python -m mq.compiled")
    return subprocess.run([sys.executable, "-m", "chaos", *arguments], env=environment, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulations of the command line. Return 1 if one of them broke a promise, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description="Raft groups, and brokers on them, in simulated time."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this seed")
    which.add_argument("--seeds", type=_seed_range, metavar="A-B", help="run these seeds and sum up")
    which.add_argument("--hours", type=float, metavar="H", help="run seeds until H hours were simulated")
    which.add_argument("--regressions", action="store_true", help="run the seeds that broke something once")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="where --hours begins")
    parser.add_argument(
        "--workload",
        type=lambda name: FORMER_NAMES.get(name, name),
        choices=(*LOGS, *WORKLOADS),
        default=LOG,
        help="what is simulated; default: the log",
    )
    parser.add_argument(
        "--form", choices=FORMS, help="the form of the modules that have two; default: compiled where that is there"
    )
    parser.add_argument("--seconds", type=float, help="simulated seconds of faults per seed")
    parser.add_argument("--trace", action="store_true", help="print every event; with --seed")
    parser.add_argument("--ndjson", type=Path, metavar="FILE", help="write the cores' events to FILE; with --seed")
    parser.add_argument("--history", type=Path, metavar="FILE", help="write what clients did to FILE; with --seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; default: CPUs")
    parser.add_argument("--budget-seconds", type=float, metavar="S", help="begin nothing new after S seconds")
    parser.add_argument("--first", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a report to FILE.md and FILE.json")
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(words)
    if options.form is not None and options.form != form():
        return _run_other_form(words, parser)
    if options.seed is not None and options.workload not in LOGS:
        return _run_one_with_brokers(
            options.seed, options.seconds, options.workload, trace=options.trace, history=options.history
        )
    if options.seed is not None:
        return _run_one(options.seed, options.seconds, options.workload, trace=options.trace, ndjson=options.ndjson)
    deadline = time.monotonic() + options.budget_seconds if options.budget_seconds else float("inf")
    seeds: Iterable[int] = options.seeds or itertools.count(options.first_seed)
    if options.regressions:
        seeds = regressions(options.workload)

    def has_time(totals: Totals) -> bool:
        enough = options.hours is not None and totals.seconds >= options.hours * 3600
        return not enough and time.monotonic() < deadline

    return _run_many(options, seeds, has_time, report.format_command(words))


if __name__ == "__main__":
    gc.freeze()  # as in the processes of a pool
    sys.exit(main())
