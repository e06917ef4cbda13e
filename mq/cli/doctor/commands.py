"""The command `raftmq doctor`, which prints the problems of a cluster, the worst first."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, run_trio
from mq.cli.output import Json, print_json
from mq.cli.topics import NAMESRV, Namesrv
from mq.inspection.findings.diagnosis import findings_of, summary, survey_counts
from mq.inspection.findings.finding import Finding, Severity
from mq.inspection.survey import Survey, survey

STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "yellow", Severity.NOTICE: "dim"}


def severity_of(text: str) -> Severity:
    """Return the severity with this name. Raises typer.BadParameter."""
    try:
        return Severity[text.upper()]
    except KeyError:
        raise typer.BadParameter(f"{text!r} is neither critical nor warning nor notice") from None


def doctor(
    watch: Annotated[
        float, typer.Option(min=0.0, max=600.0, help="Seconds for which the progress of consumer groups is watched.")
    ] = 3.0,
    fail_on: Annotated[
        Severity | None,
        typer.Option(
            "--fail-on",
            parser=severity_of,
            metavar="SEVERITY",
            help="Exit with 1 if there is a finding of this severity or a worse one: critical, warning or notice.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show what is wrong in the cluster, with remedies.

    The worst comes first. Exit code 1 if something is wrong.

    It looks at brokers and name servers (reachable, lag, damage, disks, clocks, certificates, versions, settings that
    differ) and at consumer groups (no progress, no members, messages that retention will delete, dead letters).
    """
    with client_errors():
        cluster = run_trio(partial(survey, namesrv, watch_seconds=watch))
    findings = findings_of(cluster)
    if as_json:
        print_json({"findings": [finding.as_json() for finding in findings], "checked": survey_counts(cluster)})
    else:
        print_findings(findings, cluster)
    if any(finding.severity >= (fail_on or Severity.WARNING) for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def print_findings(findings: list[Finding], survey: Survey) -> None:
    """Print two lines per finding and then a summary, for people to read."""
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        line = Text(f"{finding.severity.word:<8} ", style=STYLES[finding.severity])
        console.print(line.append(f"{finding.subject} {finding.what}.", style="none"))
        console.print(Text(f"         -> {finding.remedy} ({finding.page})", style="dim"))
    counts = survey_counts(survey)
    looked_at = ", ".join(f"{count:,} {_label(name, count)}" for name, count in counts.items())
    verdict = summary(findings)
    console.print(f"{verdict} Looked at {looked_at}.")


def _label(name: str, count: int) -> str:
    word = name.replace("_", " ")
    return word.removesuffix("s") if count == 1 else word
