"""One task for all timers of a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

_AHEAD_SECONDS = 0.01
"""Actions due this soon run together with those due now."""


async def repeat(
    actions: Sequence[tuple[float, Callable[[], None]]],
    react: Callable[[], None],
    note_delay: Callable[[float], None] = lambda seconds: None,
) -> None:
    """Run each action at its interval, and ``react`` after them; the first time after one interval.

    ``note_delay`` is called with the seconds by which due actions were late, and with the duration of all of them.

    Waking a task, and then the reactor, costs several times what most actions do. So one task runs all of them, an
    action up to `_AHEAD_SECONDS` early if others are due, and ends a turn of the reactor itself.
    """
    now = trio.current_time()
    due = [now + seconds for seconds, _ in actions]
    while True:
        wanted = min(due)
        await trio.sleep_until(wanted)
        now = trio.current_time()
        note_delay(now - wanted)
        for number, (seconds, action) in enumerate(actions):
            if due[number] <= now + _AHEAD_SECONDS:
                action()
                due[number] = now + seconds
        react()
        note_delay(trio.current_time() - now)
