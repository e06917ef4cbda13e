"""The entry point of `raftmq`: knows the names of all commands, and imports only the one to run.

Only the module of that command is imported. The others are stubs with names and help, for `--help`, shell completion,
and typer's suggestions for misspelled names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from mq.cli.errors import EXIT_REFUSED, or_exit

COMMANDS = {
    "namesrv": ("servers", "Run a name server, which tells clients the brokers."),
    "broker": ("servers", "Run one replica of a broker group."),
    "proxy": ("proxy", "Run a proxy for gRPC clients of RocketMQ 5."),
    "filter-server": (
        "filter_server",
        "Run a server for filter programs of consumers.",
    ),
    "console": (
        "console",
        "Run a web console for the cluster.",
    ),
    "dev": ("dev", "Run a name server and groups of brokers until ctrl-C."),
    "demo": ("demo", "Kill a leader, and check that no message is lost."),
    "produce": ("produce_consume", "Send each line of standard input as a message."),
    "consume": ("produce_consume", "Print the body of each message of a topic, one per line."),
    "status": ("status", "Show the leader, terms and lag of each group."),
    "doctor": ("doctor.commands", "Show what is wrong in the cluster, with remedies."),
    "top": ("top", "Show rates, lag and leaders live, until ctrl-C."),
    "tail": ("tail", "Print messages of a topic as they arrive, one per line."),
    "export": ("definitions", "Write topics, groups, schedules and offsets as JSON."),
    "import": ("import_definitions", "Create what an exported document defines."),
    "restore": ("restore", "Restore a backup into data directories of a new group."),
    "trace": ("tracing", "Show who sent and handled a message, and when."),
}
"""Name, module in this package, and the first sentence of its help."""

FUNCTIONS = {"import": "import_", "filter-server": "filter_server"}
"""The functions of commands whose names are not Python names."""

GROUPS = {
    "topic": ("topics", "Create, update, list, describe and delete topics."),
    "message": ("message_lookups", "Look up single messages."),
    "schedule": ("schedules", "Create, change, trigger and delete schedules."),
    "consumer-group": ("consumer_groups", "Create, change, reset and delete consumer groups."),
    "lite": ("lite_topics", "List and describe lite topics and their lag."),
    "dlq": ("dead_letters", "List, show, requeue, dismiss and export dead letters."),
    "user": ("users", "Create, update, list and delete users."),
    "acl": ("policies", "Manage the permissions of users."),
    "mirror": (
        "mirror.commands",
        "Copy another cluster, and change over to raftmq.",
    ),
    "group": ("group", "Show and change the members of a broker group."),
    "bench": ("bench.commands", "Measure throughput and latency of sends and consumption."),
    "config": ("config", "Convert settings files of RocketMQ."),
    "backup": ("backup", "Back up the log of a replica, and verify backups."),
    "archive": ("archive", "List, print and verify archived messages, without brokers."),
    "table": ("topic_tables", "Keep tables up to date from topics, with Spark."),
    "log": ("log_files", "Verify, print and repair the log of a stopped node."),
}


def build(names: Collection[str]) -> typer.Typer:
    """Build the application. Only commands and groups in ``names`` can run; the others have just a name and help."""
    app = typer.Typer(
        name="raftmq",
        help="A message broker that speaks the RocketMQ protocol and keeps every message in a Raft log.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, (module, summary) in COMMANDS.items():
        command: Callable[..., None] = (
            getattr(_module(module), FUNCTIONS.get(name, name)) if name in names else _not_loaded
        )
        app.command(name, help=None if name in names else summary)(command)
    for name, (module, summary) in GROUPS.items():
        group: typer.Typer = _module(module).app if name in names else _empty_group()
        app.add_typer(group, name=name, help=summary)
    return app


def wanted_by(arguments: Sequence[str]) -> set[str]:
    """Return the command or group that a command line names; empty if it names none."""
    for argument in arguments:
        if not argument.startswith("-"):
            return {argument} & (COMMANDS.keys() | GROUPS.keys())
    return set()


def main() -> None:
    """Run the command named in ``sys.argv``; exits with its exit code."""
    if not __debug__:
        print("raftmq: assertions guard the log; start Python without -O and PYTHONOPTIMIZE", file=sys.stderr)
        sys.exit(EXIT_REFUSED)
    # For completion, the shell passes the typed text in the environment.
    typed_text = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS"))
    names = wanted_by(sys.argv[1:] if typed_text is None else typed_text.split()[1:])
    if names and typed_text is None:
        from mq.cli.logs import configure_logging

        configure_logging("warning")  # for commands that talk to servers; servers set their own level
    or_exit(build(names))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"raftmq {version('raftmq')}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A message broker that speaks the RocketMQ protocol and keeps every message in a Raft log."""


def _module(name: str) -> Any:
    return import_module(f"mq.cli.{name}")


def _not_loaded() -> None:
    raise AssertionError("the module of this command was not imported")


def _empty_group() -> typer.Typer:
    group = typer.Typer()
    group.command("none", hidden=True)(_not_loaded)
    group.callback()(lambda: None)
    return group
