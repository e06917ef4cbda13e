"""Runs the requests of a command with an `Admin` that is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mq.cli.client_errors import client_errors
from mq.cli.errors import run_trio
from mq.client.admin import Admin

AdminT = TypeVar("AdminT", bound=Admin)
T = TypeVar("T")


def run_with(kind: type[AdminT], namesrv: str, ask: Callable[[AdminT], Awaitable[T]]) -> T:
    """Open an admin of this kind and return the result of `ask`. Raises CommandFailed if the client fails."""

    async def main() -> T:
        async with kind(namesrv) as admin:
            return await ask(admin)

    with client_errors():
        return run_trio(main)
