"""Ends a consumer's `run` on SIGTERM and SIGINT."""

from __future__ import annotations

import signal
from typing import Protocol

import anyio
import anyio.abc

from mq.client.logs import log

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drains(Protocol):
    """The methods of a consumer, synchronous or not, that a stop signal calls."""

    async def drain(self, timeout: float) -> bool:
        """End `run` when the running handlers have finished; see `PushConsumer.drain`."""

    def stop(self) -> None:
        """End `run`; running handlers are cancelled."""


def check_seconds(name: str, seconds: float) -> None:
    """Raise ValueError unless `seconds` is positive."""
    if not seconds > 0:
        raise ValueError(f"{name} is {seconds}; it must be positive")


def log_signal(number: int, client: object, seconds: float) -> None:
    """Log that a signal ends `run`."""
    log.info("draining", client=repr(client), signal=signal.Signals(number).name, seconds=seconds)


async def drain_on_signals(
    consumer: Drains, seconds: float, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Drain the consumer on the first signal, and stop it on the second. Raises RuntimeError or ValueError outside of
    the main thread.
    """
    drained = False
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                if drained:
                    consumer.stop()
                    continue
                drained = True
                log_signal(number, consumer, seconds)
                tasks.start_soon(consumer.drain, seconds)
