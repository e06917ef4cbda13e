"""Asks a person at a terminal for confirmation before something is lost. Scripts are not asked."""

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
    """Ask for confirmation at a terminal. Raises CommandFailed if the person says no; then nothing has changed.

    ``loss`` says what is lost; it is called only if a person is asked.
    """
    if yes or not sys.stdin.isatty():
        return
    text = await loss()
    print(f"{text}.", file=sys.stderr)
    if not await trio.to_thread.run_sync(lambda: typer.confirm(question, err=True)):
        raise CommandFailed(on_no, EXIT_FAILED)
