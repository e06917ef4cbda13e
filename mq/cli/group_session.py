"""Opens a session with a broker group for a command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mq.cli.errors import lone_errors
from mq.client.admin import Admin
from mq.inspection.group_session import GroupSession


@asynccontextmanager
async def open_session(
    namesrv: str, group: str | None, *, on_progress: Callable[[str], None]
) -> AsyncIterator[GroupSession]:
    """Open a session with a group through these name servers; see `GroupSession`."""
    async with lone_errors(), Admin(namesrv) as admin:
        yield GroupSession(admin, group, on_progress)
