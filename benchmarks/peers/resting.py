"""Waits until servers have done the work that follows a load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from mq.monitoring.cpu_time import cpu_seconds

REST_CORES: Final = 0.1
REST_SECONDS_MAX: Final = 30.0


async def rest(pids: Sequence[int]) -> None:
    """Wait until the servers use less than `REST_CORES` for a second, for example because raftmq has indexed the keys
    of messages; at most `REST_SECONDS_MAX`.
    """
    with trio.move_on_after(REST_SECONDS_MAX):
        cpu, is_busy = sum(map(cpu_seconds, pids)), True
        while is_busy:
            before = cpu
            await trio.sleep(1.0)
            cpu = sum(map(cpu_seconds, pids))
            is_busy = cpu - before > REST_CORES
