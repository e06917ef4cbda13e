"""Periodic tasks of a process that wake up together: one wake-up of the process instead of one for each."""

from __future__ import annotations

import trio


def seconds_to_step(seconds: float, now: float) -> float:
    """Seconds from ``now`` to the next multiple of ``seconds``; at least half of ``seconds``: pure."""
    remaining = seconds - now % seconds
    return remaining if remaining >= seconds / 2 else remaining + seconds


def step_after(seconds: float, now: float) -> float:
    """The time when ``seconds`` are over, or the nearest whole second if they are one or more: pure.

    Work that is due at whole seconds is due together.
    """
    due_at = now + seconds
    return due_at if seconds < 1 else float(round(due_at))


async def sleep_to_step(seconds: float) -> None:
    """Sleep for about ``seconds``; tasks that sleep for the same time, or a multiple of it, wake up together."""
    await trio.sleep(seconds_to_step(seconds, trio.current_time()))
