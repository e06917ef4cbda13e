"""`raftmq` run in the process of the test: starting Python and importing the commands takes longer than most of them.

What is left to real processes: commands that read standard input or write bytes (`produce`, `consume`, `tail`), those
that run until a signal, and one of each kind of ending in `tests/process/test_refusals.py`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import structlog
import trio
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import CommandFailed

SECONDS_MAX = 60.0

LOGGED = re.compile(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[.*\n")
"""A log line of a broker in this process: structlog prints it to whatever `sys.stdout` is at the moment."""


class Done(NamedTuple):
    """What a command left, as a process would have."""

    code: int
    out: str
    err: str


def run_here(*arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
    """Run one command at a time: it replaces `sys.stdout`. ``env`` is added to the environment.

    An exception that the command does not handle, which would be a traceback, is raised here.
    """
    if not structlog.is_configured():
        # As the command itself does, but not for good: what a test configures is undone after its module.
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
    result = CliRunner(env=env).invoke(app, arguments, given)
    out = LOGGED.sub("", result.stdout)
    match result.exception:
        case None | SystemExit():
            return Done(result.exit_code, out, result.stderr)
        case CommandFailed() as failed:
            return Done(failed.exit_code, out, f"{result.stderr}raftmq: {failed}\n")
        case unexpected:
            raise unexpected


async def raftmq(*arguments: str, given: bytes = b"", env: Mapping[str, str] | None = None) -> Done:
    """As `run_here`, in a thread."""
    with trio.fail_after(SECONDS_MAX):
        return await trio.to_thread.run_sync(
            partial(run_here, *arguments, given=given, env=env), abandon_on_cancel=True
        )
