"""Asks on a terminal before something is lost; scripts are not asked."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import trio
import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, also on a terminal.")]


async def confirm(
    loss: Callable[[], Awaitable[str]],
    *,
    yes: bool,
    question: str = "Delete it?",
    on_no: str = "nothing was deleted",
) -> None:
    """Go on, unless a person at the terminal says no: then it raises CommandFailed, and nothing is changed.

    ``loss`` says what is lost; it is called only if a person is asked.
    """
    if yes or not sys.stdin.isatty():
        return
    text = await loss()
    print(f"{text}.", file=sys.stderr)
    if not await trio.to_thread.run_sync(lambda: typer.confirm(question, err=True)):
        raise CommandFailed(on_no, EXIT_FAILED)
