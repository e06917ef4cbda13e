"""The command line: one typer application, one module per group of commands."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from mq.cli import consumer_groups, demo, dev, group, log_files, lookups, messages, servers, status, topics, tracing
from mq.cli.errors import EXIT_REFUSED, CommandFailed
from mq.cli.logs import configure_logging

app = typer.Typer(
    name="raftmq",
    help="A message broker that speaks the RocketMQ protocol and keeps every message in a Raft log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"raftmq {version('raftmq')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A message broker that speaks the RocketMQ protocol and keeps every message in a Raft log."""


app.command("namesrv")(servers.namesrv)
app.command("broker")(servers.broker)
app.command("dev")(dev.dev)
app.command("demo")(demo.demo)
app.command("produce")(messages.produce)
app.command("consume")(messages.consume)
app.command("status")(status.status)
app.command("trace")(tracing.trace)
app.add_typer(topics.app, name="topic")
app.add_typer(lookups.app, name="message")
app.add_typer(consumer_groups.app, name="consumer-group")
app.add_typer(group.app, name="group")
app.add_typer(log_files.app, name="log")


def main() -> None:
    """Run the command that ``sys.argv`` names; ends the process with its exit code."""
    if not __debug__:
        print("raftmq: assertions guard the log; start Python without -O and PYTHONOPTIMIZE", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    configure_logging("warning")  # commands that talk to servers; a server says more, as it is told
    try:
        app()
    except CommandFailed as failed:
        print(f"raftmq: {failed}", file=sys.stderr)
        sys.exit(failed.exit_code)
