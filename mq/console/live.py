"""Updates parts of open pages: renders each fragment once for all tabs of a browser that show it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from mq.console.watch import SharedAnswer

LIVE_SECONDS: Final = 2.0
"""Seconds between two looks at an open page."""
KEEP_ALIVE_TURNS: Final = 5
"""A stream without news says so once in this number of turns, so that no proxy between takes it for dead."""


@dataclass(slots=True)
class _OpenPage:
    text: SharedAnswer[str]
    tabs: int


class Fragments:
    """The fragments that tabs show now, by a key of session and address."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._streams = 0
        self._open: dict[str, _OpenPage] = {}

    @property
    def streams(self) -> int:
        """The number of tabs that are open."""
        return self._streams

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of tabs is open."""
        return self._streams >= self._streams_max

    def open(self, key: str, make: Callable[[], Awaitable[str]]) -> None:
        """Add a tab that shows this fragment."""
        self._streams += 1
        fragment = self._open.get(key)
        if fragment is None:
            self._open[key] = _OpenPage(SharedAnswer(make, LIVE_SECONDS / 2), 1)
        else:
            fragment.tabs += 1

    async def get(self, key: str) -> str:
        """Return the text of a fragment, at most some seconds old."""
        value = (await self._open[key].text.get()).value
        assert value is not None, "a fragment says itself what could not be asked"
        return value

    def close(self, key: str) -> None:
        """Remove a closed tab; with the last tab, its fragment is removed, too."""
        self._streams -= 1
        fragment = self._open[key]
        fragment.tabs -= 1
        if not fragment.tabs:
            del self._open[key]


async def write_events(
    fragments: Fragments,
    key: str,
    make: Callable[[], Awaitable[str]],
    is_open: Callable[[], bool],
    write: Callable[[str], Awaitable[None]],
) -> None:
    """Write a fragment as a server-sent event whenever it has changed, until its session ends."""
    last: str | None = None
    silent = 0
    fragments.open(key, make)
    try:
        while is_open():
            text = await fragments.get(key)
            if text != last:
                last, silent = text, 0
                # A browser takes a carriage return for the end of a line, too, and the rest for a field of its own.
                text = text.replace("\r", "&#13;")
                await write("".join(f"data: {line}\n" for line in text.split("\n")) + "\n")
            else:
                silent += 1
                if silent % KEEP_ALIVE_TURNS == 0:
                    await write(": nothing new\n\n")
            await trio.sleep(LIVE_SECONDS)
        await write("event: ended\ndata: \n\n")
    finally:
        fragments.close(key)
