"""`raftmq-jepsen`: tests real brokers under real faults. Exit codes: 0 valid, 1 broken, 2 unknown, 3 cannot run."""

from __future__ import annotations

import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from chaos.planted.__main__ import PACKAGES, PatchFailed, is_of_clients, plant
from chaos.planted.__main__ import names as planted_names
from checkers.send_path import BY_COMPILED
from checkers.verdict import EXIT_CANNOT_RUN, EXIT_UNKNOWN, EXIT_VALID, Verdict, exit_code, in_words
from jepsen.deployments import BACKENDS, default_backend, why_default, why_not
from jepsen.deployments.cluster import ClusterFailed
from jepsen.deployments.netns import NetworksInUse
from jepsen.deployments.security import SECURITY
from jepsen.deployments.security import unavailable as why_not_secured
from jepsen.judge import REPORT, NotARun, VerdictNotWritten, judge, states_met
from jepsen.nemeses.needs import why_not as why_no_fault
from jepsen.nemeses.needs import why_not_together
from jepsen.openchaos import OPENCHAOS, kinds_of
from jepsen.profiles import PROFILES, SMOKE, Cell, cells, part_of
from jepsen.report.matrix import (
    REPORTS,
    Row,
    not_run,
    read_rows,
    report_of,
    row_of,
    still_to_run,
    table,
    without,
    worst,
    write_report,
)
from jepsen.report.serve import HOST, open_server
from jepsen.run import Plan, carry_out, new_directory
from jepsen.scenarios import SCENARIOS
from jepsen.schedule import CALM, KINDS
from jepsen.workloads import WORKLOADS
from mq.cli.errors import run_trio
from mq.cli.logs import configure_logging
from mq.client import ClientError

app = typer.Typer(
    name="raftmq-jepsen",
    help="Run real brokers under real faults, and check what clients saw against what is promised.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


COPY_VARIABLE = "RAFTMQ_JEPSEN_COPY"
"""The variable that tells a run with a bug planted in its clients the directory of its code."""


class CannotRun(Exception):
    """The command cannot run. `main` prints the message and exits with code 3."""


@app.command("run")
def run(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")] = "queue",
    nemesis: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join((*KINDS, CALM))}.")] = CALM,
    seconds: Annotated[float, typer.Option("--time", help="Of faults; healing and reading come after.", min=1)] = 60,
    seed: Annotated[int | None, typer.Option(help="Which faults, when, aimed at whom; drawn if not given.")] = None,
    backend: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(BACKENDS)}; default: netns for root, else local.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where directories of runs are made.")] = Path("store"),
    planted: Annotated[
        str, typer.Option(help="Brokers run with this mistake of chaos/planted: does the run notice?", metavar="NAME")
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Many short faults, and short rests between them.")] = False,
    security: Annotated[
        str, typer.Option(help=f"All servers and clients have them: {', '.join(SECURITY)}.", metavar="WHAT")
    ] = "",
    openchaos: Annotated[
        str, typer.Option(help=f"Instead of --nemesis, OpenChaos's names: {', '.join(OPENCHAOS)}.", metavar="NAMES")
    ] = "",
) -> None:
    """Start brokers and clients, inject faults and heal them, read every replica, and judge the history."""
    nemeses = tuple(_check("nemesis", name.strip(), (*KINDS, CALM)) for name in nemesis.split(","))
    faults = tuple(_check("fault of OpenChaos", name.strip(), OPENCHAOS) for name in openchaos.split(",") if openchaos)
    if faults:
        nemeses = tuple(kinds_of(faults))
    plan = _plan(workload, nemeses, seconds, seed, _backend(backend), planted, quick=quick, security=security)
    _print_verdict(*_run(replace(plan, openchaos=faults), store))


@app.command("scenario")
def scenario(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(SCENARIOS)}; or list.")],
    workload: Annotated[str | None, typer.Option(help="What clients do; default: that of the scenario.")] = None,
    seconds: Annotated[float, typer.Option("--time", help="Of rounds; at least one is played.", min=1)] = 60,
    seed: Annotated[int | None, typer.Option(help="Whom it hits; drawn if not given.")] = None,
    backend: Annotated[str | None, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = None,
    store: Annotated[Path, typer.Option(help="Where directories of runs are made.")] = Path("store"),
    planted: Annotated[str, typer.Option(help="As of run.", metavar="NAME")] = "",
) -> None:
    """Repeat a sequence of faults that has lost messages of other systems, and judge the history."""
    if name == "list":
        backend = backend or default_backend()
        for each in SCENARIOS.values():
            reasons = [reason for kind in each.kinds if (reason := why_no_fault(kind, backend)) is not None]
            typer.echo(f"{each.name:<21} {each.summary}" + (f" (not available here: {reasons[0]})" if reasons else ""))
        return
    scenario_ = SCENARIOS[_check("scenario", name, SCENARIOS)]
    workload = workload or scenario_.workload
    _print_verdict(
        *_run(_plan(workload, scenario_.kinds, seconds, seed, _backend(backend), planted, scenario=name), store)
    )


def _backend(backend: str | None) -> str:
    """The back end to use; first prints why a default one is not the best. Raises CannotRun."""
    if backend is None and (reason := why_default()):
        typer.echo(reason)
    return _check("back end", backend or default_backend(), BACKENDS)


def _plan(
    workload: str,
    nemeses: tuple[str, ...],
    seconds: float,
    seed: int | None,
    backend_name: str,
    planted_bug: str,
    *,
    scenario: str = "",
    quick: bool = False,
    security: str = "",
) -> Plan:
    """Make a plan that can be executed here. Raises CannotRun."""
    if (reason := why_not(backend_name)) is not None:
        raise CannotRun(f"the back end {backend_name} cannot be used: {reason}; --backend local needs neither")
    for kind in nemeses:
        if (reason := why_no_fault(kind, backend_name)) is not None:
            raise CannotRun(f"the fault {kind} is not available here: {reason}")
    if (reason := why_not_together(workload, nemeses, backend_name)) is not None:
        raise CannotRun(reason)
    if security:
        _check("kind of security", security, SECURITY)
        reason = "containers do not get its files" if backend_name == "docker" else why_not_secured(security)
        if reason is not None:
            raise CannotRun(f"{security} is not available here: {reason}")
    if planted_bug:
        _check("planted mistake", planted_bug, planted_names())
        if is_of_clients(planted_bug) and COPY_VARIABLE not in os.environ:
            raise typer.Exit(_run_in_copy(planted_bug))
    seed_ = random.randrange(1_000_000) if seed is None else seed
    name = _check("workload", workload, WORKLOADS)
    return Plan(name, nemeses, seconds, seed_, backend_name, planted_bug, scenario, quick, security)


def _run_in_copy(planted_bug: str) -> int:
    """Run the same command from a copy of the code with a bug planted in the clients; returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="planted-") as copy:
        try:
            plant(planted_bug, Path(copy), (*PACKAGES, "jepsen"))
        except PatchFailed as error:
            raise CannotRun(str(error)) from error
        environment = {**os.environ, "PYTHONPATH": copy, COPY_VARIABLE: copy}
        # -P: not the checkout in the current directory, which has no planted bug.
        command = [sys.executable, "-P", "-m", "jepsen", *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


def _run(plan: Plan, store: Path) -> tuple[Verdict, Path, bool]:
    """Execute a plan and judge the available history; also returns whether ctrl-C ended it. Raises CannotRun,
    NotARun.
    """
    began = time.gmtime()
    directory = new_directory(store, plan, time.strftime("%Y%m%dT%H%M%SZ", began))
    typer.echo(plan.command)
    since = time.monotonic_ns()

    def echo(text: str) -> None:
        typer.echo(f"{(time.monotonic_ns() - since) / 1e9:6.1f} s  {text}")

    try:
        run_trio(partial(carry_out, plan, directory, echo, began=time.strftime("%Y-%m-%d %H:%M:%S UTC", began)))
    except (NetworksInUse, PatchFailed, PermissionError) as error:
        raise CannotRun(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("interrupted; what there is, is judged", err=True)
        return _judge(directory), directory, True
    except shutil.Error as error:
        typer.echo(f"the run failed: {len(error.args[0])} files could not be copied: {error.args[0][0]}", err=True)
    except (ClusterFailed, ClientError, OSError, subprocess.CalledProcessError) as error:
        typer.echo(f"the run failed: {error}", err=True)
    return _judge(directory), directory, False


def _judge(directory: Path) -> Verdict:
    """The verdict on a stored run, even if it cannot be written to its directory. Raises NotARun."""
    try:
        return judge(directory)
    except VerdictNotWritten as error:
        typer.echo(str(error), err=True)
        return error.verdict


@app.command("matrix")
def matrix(
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = SMOKE,
    seed: Annotated[int, typer.Option(help="Of the first run; each other one has the next.")] = 1,
    backend: Annotated[str | None, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = None,
    store: Annotated[Path, typer.Option(help="Where directories of runs are made.")] = Path("store"),
    part: Annotated[str, typer.Option(help="Only the first of five pieces; reports add up.", metavar="1/5")] = "1/1",
    resume: Annotated[
        bool, typer.Option("--resume", help="Only the runs that the report does not have as valid.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Where the report is written; default: in the store, nowhere for smoke.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Write the report to docs/reports of this checkout.")
    ] = False,
) -> None:
    """Execute and judge all runs of a profile, one after the other. The exit code is that of the worst run."""
    backend_name = _backend(backend)
    every = cells(
        _check("profile", profile, PROFILES),
        list(WORKLOADS),
        [(each.name, each.kinds, each.workload) for each in SCENARIOS.values()],
    )
    number, parts = _part(part)
    goes_to = report or (
        report_of(profile, backend_name, REPORTS if publish else store) if publish or profile != SMOKE else None
    )
    rows = read_rows(goes_to, profile) if goes_to is not None and (parts > 1 or resume) else []
    count = len(every)
    if resume:
        every, rows = still_to_run(every, rows)
    finished_rows: list[Row] = []
    reasons = dict.fromkeys(_left_out(every, backend_name))
    for reason in reasons:
        typer.echo(f"left out of these runs: {reason}")
    for at, cell in enumerate(part_of(every, number, parts)):
        typer.echo(f"\n{cell.workload} under {cell.faults}")
        cell = _with_what_there_is(cell, backend_name)
        try:
            plan = _plan(
                cell.workload,
                cell.nemeses,
                cell.seconds,
                seed + at,
                backend_name,
                "",
                scenario=cell.scenario,
                quick=cell.quick,
                security=cell.security,
            )
            verdict, directory, interrupted = _run(plan, store)
        except (CannotRun, NotARun) as reason:
            typer.echo(f"not run: {reason}")
            finished_rows.append(not_run(cell, str(reason)))
            rows = [*without(rows, cell), finished_rows[-1]]
            reasons[str(reason)] = None
            continue
        typer.echo(f"{in_words(verdict.valid)}; the page is {directory / REPORT}")
        finished_rows.append(row_of(cell, verdict, states_met(directory)))
        rows = [*without(rows, cell), finished_rows[-1]]
        if interrupted:
            break
        if goes_to is not None:
            write_report(goes_to, profile, rows, list(reasons), run_count=count)
    typer.echo("\n" + table(finished_rows))
    if goes_to is not None:
        write_report(goes_to, profile, rows, list(reasons), run_count=count)
        typer.echo(f"the report is {goes_to}")
    code = worst(finished_rows)
    if code in (EXIT_VALID, EXIT_CANNOT_RUN) and reasons:
        typer.echo(f"exit code {EXIT_CANNOT_RUN}: nothing is broken, but this was left out: {'; '.join(reasons)}")
    raise typer.Exit(EXIT_CANNOT_RUN if code == EXIT_VALID and reasons else code)


def _left_out(all_cells: Sequence[Cell], backend: str) -> list[str]:
    """The faults of the planned runs that are not available here, with the reasons."""
    if (reason := why_not(backend)) is not None:
        return [f"everything: the back end {backend} cannot be used: {reason}"]
    kinds = dict.fromkeys(kind for cell in all_cells for kind in cell.nemeses)
    return [f"{kind}: {reason}" for kind in kinds if (reason := why_no_fault(kind, backend)) is not None]


def _with_what_there_is(cell: Cell, backend: str) -> Cell:
    """Remove the faults from a run that are not available here; unchanged if all or none are."""
    kinds = tuple(kind for kind in cell.nemeses if why_no_fault(kind, backend) is None)
    return replace(cell, nemeses=kinds) if kinds and not cell.scenario else cell


def _part(text: str) -> tuple[int, int]:
    """The number of the part and of all parts. Raises CannotRun."""
    number, _, parts = text.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise CannotRun(f"{text!r} is not a part of a profile such as 1/5")
    return int(number), int(parts)


@app.command("serve")
def serve(
    store: Annotated[Path, typer.Option(help="The directory of runs.")] = Path("store"),
    port: Annotated[int, typer.Option(help="On the loopback address.", min=0, max=65535)] = 8011,
) -> None:
    """Show stored runs in a browser, and compare two of them, until ctrl-C."""
    if not store.is_dir():
        raise CannotRun(f"there is no directory {store}; runs make it")
    try:
        server = open_server(store, port)
    except OSError as error:
        raise CannotRun(f"port {port} cannot be listened on: {error.strerror}") from error
    with server:
        typer.echo(f"runs in {store} at http://{HOST}:{server.server_address[1]}/")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


@app.command("check")
def check(directory: Annotated[Path, typer.Argument(help="Of a run.", metavar="DIR")]) -> None:
    """Judge a stored run again, and write its verdict and its page again."""
    _print_verdict(_judge(directory), directory)


@app.command("list")
def names() -> None:
    """List workloads, faults and back ends, and say which of them this machine can run."""
    typer.echo("workloads")
    for workload in WORKLOADS.values():
        typer.echo(f"  {workload.name:<12} {workload.summary}")
    typer.echo("faults")
    typer.echo(f"  {CALM:<12} none")
    backend = default_backend()
    for kind, variants in KINDS.items():
        reason_text = "" if (reason := why_no_fault(kind, backend)) is None else f" (not available here: {reason})"
        typer.echo(f"  {kind:<12} {', '.join(variant.what for variant in variants)}{reason_text}")
    typer.echo("back ends")
    for each in BACKENDS:
        reason = why_not(each)
        typer.echo(f"  {each:<12} {'can be used' if reason is None else f'cannot be used here: {reason}'}")


def _check(what: str, name: str, names: Collection[str]) -> str:
    if name in names:
        return name
    nearest = difflib.get_close_matches(name, names, n=len(names), cutoff=0.0)
    raise CannotRun(f"there is no {what} {name!r}; there are {', '.join(nearest or names)}")


def _print_verdict(verdict: Verdict, directory: Path, _interrupted: bool = False) -> None:
    """Print the verdict by promise and end with its exit code."""
    for result in verdict.results:
        note = f" ({result.counts[BY_COMPILED]:,} {BY_COMPILED})" if BY_COMPILED in result.counts else ""
        typer.echo(f"{in_words(result.valid):<8} {result.name}: {result.promise}{note}")
        for anomaly, count in result.anomalies.items():
            typer.echo(f"           {anomaly}, {count} times: {result.examples[anomaly][0]}")
        for reason in result.unknown:
            typer.echo(f"           {reason}")
    typer.echo(f"{in_words(verdict.valid)}; the page is {directory / REPORT}")
    raise typer.Exit(exit_code(verdict.valid))


def main() -> None:
    """Run the command in ``sys.argv``, and exit with its exit code."""
    configure_logging("error")
    try:
        app(prog_name="raftmq-jepsen")
    except CannotRun as error:
        typer.echo(f"raftmq-jepsen: {error}", err=True)
        sys.exit(EXIT_CANNOT_RUN)
    except NotARun as error:
        typer.echo(f"raftmq-jepsen: {error}", err=True)
        sys.exit(EXIT_UNKNOWN)
    except Exception:  # a bug of the harness proves nothing about brokers, and must not be reported as broken
        traceback.print_exc()
        sys.exit(EXIT_UNKNOWN)
