"""`raftmq-jepsen`: real brokers, real faults, a verdict. Exit codes: 0 valid, 1 broken, 2 unknown, 3 cannot run."""

from __future__ import annotations

import difflib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from chaos.planted.__main__ import PatchRefused
from chaos.planted.__main__ import names as planted_names
from jepsen.deployments import BACKENDS, default_backend, why_not
from jepsen.deployments.cluster import ClusterFailed
from jepsen.deployments.netns import NetworksInUse
from jepsen.judge import REPORT, NotARun, judge
from jepsen.nemeses.needs import why_not as why_no_fault
from jepsen.run import Plan, carry_out, new_directory
from jepsen.scenarios import SCENARIOS
from jepsen.schedule import CALM, KINDS
from jepsen.verdict import EXIT_CANNOT_RUN, EXIT_UNKNOWN, Verdict, exit_code, in_words
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


class CannotRun(Exception):
    """Ends the command with one message and exit code 3."""


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
) -> None:
    """Start brokers, let clients work, break things, mend them, read every replica, and judge."""
    nemeses = tuple(_known("nemesis", name.strip(), (*KINDS, CALM)) for name in nemesis.split(","))
    _tell(*_run(_plan(workload, nemeses, seconds, seed, backend, planted), store))


@app.command("scenario")
def scenario(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(SCENARIOS)}; or list.")],
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}.")] = "log",
    seconds: Annotated[float, typer.Option("--time", help="Of rounds; at least one is played.", min=1)] = 60,
    seed: Annotated[int | None, typer.Option(help="Whom it hits; drawn if not given.")] = None,
    backend: Annotated[str | None, typer.Option(help=f"One of {', '.join(BACKENDS)}.")] = None,
    store: Annotated[Path, typer.Option(help="Where directories of runs are made.")] = Path("store"),
    planted: Annotated[str, typer.Option(help="As of run.", metavar="NAME")] = "",
) -> None:
    """Play faults in an order that has lost messages of other systems, again and again, and judge."""
    if name == "list":
        for each in SCENARIOS.values():
            missing = [reason for kind in each.kinds if (reason := why_no_fault(kind)) is not None]
            typer.echo(f"{each.name:<18} {each.summary}" + (f" (cannot be had here: {missing[0]})" if missing else ""))
        return
    kinds = SCENARIOS[_known("scenario", name, SCENARIOS)].kinds
    _tell(*_run(_plan(workload, kinds, seconds, seed, backend, planted, scenario=name), store))


def _plan(
    workload: str,
    nemeses: tuple[str, ...],
    seconds: float,
    seed: int | None,
    backend: str | None,
    planted: str,
    *,
    scenario: str = "",
) -> Plan:
    """A plan that can be carried out here. Raises CannotRun."""
    chosen = _known("back end", backend or default_backend(), BACKENDS)
    if (reason := why_not(chosen)) is not None:
        raise CannotRun(f"the back end {chosen} cannot be used: {reason}; --backend local needs neither")
    for kind in nemeses:
        if (reason := why_no_fault(kind)) is not None:
            raise CannotRun(f"{kind} cannot be had: {reason}")
    if planted:
        _known("planted mistake", planted, planted_names())
    drawn = random.randrange(1_000_000) if seed is None else seed
    return Plan(_known("workload", workload, WORKLOADS), nemeses, seconds, drawn, chosen, planted, scenario)


def _run(plan: Plan, store: Path) -> tuple[Verdict, Path]:
    """Carry out a plan and judge what there is of it. Raises CannotRun, NotARun."""
    began = time.gmtime()
    directory = new_directory(store, plan, time.strftime("%Y%m%dT%H%M%SZ", began))
    typer.echo(plan.command)
    since = time.monotonic_ns()

    def say(text: str) -> None:
        typer.echo(f"{(time.monotonic_ns() - since) / 1e9:6.1f} s  {text}")

    try:
        run_trio(partial(carry_out, plan, directory, say, began=time.strftime("%Y-%m-%d %H:%M:%S UTC", began)))
    except (NetworksInUse, PatchRefused, PermissionError) as error:
        raise CannotRun(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("interrupted; what there is, is judged", err=True)
    except shutil.Error as error:
        typer.echo(f"the run failed: {len(error.args[0])} files could not be copied: {error.args[0][0]}", err=True)
    except (ClusterFailed, ClientError, OSError, subprocess.CalledProcessError) as error:
        typer.echo(f"the run failed: {error}", err=True)
    return judge(directory), directory


@app.command("check")
def check(directory: Annotated[Path, typer.Argument(help="Of a run.", metavar="DIR")]) -> None:
    """Judge a stored run again, and write its verdict and its page anew."""
    _tell(judge(directory), directory)


@app.command("list")
def names() -> None:
    """Say which workloads, faults and back ends there are, and which of them can be used here."""
    typer.echo("workloads")
    for workload in WORKLOADS.values():
        typer.echo(f"  {workload.name:<12} {workload.summary}")
    typer.echo("faults")
    typer.echo(f"  {CALM:<12} none")
    for kind, variants in KINDS.items():
        missing = "" if (reason := why_no_fault(kind)) is None else f" (cannot be had here: {reason})"
        typer.echo(f"  {kind:<12} {', '.join(variant.what for variant in variants)}{missing}")
    typer.echo("back ends")
    for backend in BACKENDS:
        reason = why_not(backend)
        typer.echo(f"  {backend:<12} {'can be used' if reason is None else f'cannot be used here: {reason}'}")


def _known(what: str, name: str, names: Collection[str]) -> str:
    if name in names:
        return name
    nearest = difflib.get_close_matches(name, names, n=len(names), cutoff=0.0)
    raise CannotRun(f"there is no {what} {name!r}; there are {', '.join(nearest or names)}")


def _tell(verdict: Verdict, directory: Path) -> None:
    """Print the verdict by promise and end with its exit code."""
    for result in verdict.results:
        typer.echo(f"{in_words(result.valid):<8} {result.name}: {result.promise}")
        for anomaly, count in result.anomalies.items():
            typer.echo(f"           {anomaly}, {count} times: {result.examples[anomaly][0]}")
        for reason in result.unknown:
            typer.echo(f"           {reason}")
    typer.echo(f"{in_words(verdict.valid)}; the page is {directory / REPORT}")
    raise typer.Exit(exit_code(verdict.valid))


def main() -> None:
    """Run the command that ``sys.argv`` names; ends the process with its exit code."""
    configure_logging("error")
    try:
        app(prog_name="raftmq-jepsen")
    except CannotRun as error:
        typer.echo(f"raftmq-jepsen: {error}", err=True)
        sys.exit(EXIT_CANNOT_RUN)
    except NotARun as error:
        typer.echo(f"raftmq-jepsen: {error}", err=True)
        sys.exit(EXIT_UNKNOWN)
