"""Checks the arguments with which an application registers its handlers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from mq.client.application_code import is_async

ORDERED_RECONSUME_TIMES = 120
"""Default of `max_reconsume_times` for messages that are retried by this member: about an hour by default."""


def attempts_max(max_reconsume_times: int | None) -> int | None:
    """Return how often one member tries a message before it gives up; None for no limit. Raises ValueError."""
    if max_reconsume_times is None:
        return ORDERED_RECONSUME_TIMES + 1
    if max_reconsume_times < -1:
        raise ValueError(f"max_reconsume_times {max_reconsume_times}: pass -1 for ever, or a number of retries")
    return None if max_reconsume_times == -1 else max_reconsume_times + 1


def check_order(ordered: object) -> tuple[bool, bool]:
    """Return whether order is kept, and whether only within each sharding key. Raises ValueError."""
    if isinstance(ordered, str) and ordered != "key":
        raise ValueError(f"ordered is {ordered!r}; allowed: True, False and 'key'")
    return bool(ordered), ordered == "key"


def check_handler(handler: Callable[..., Awaitable[None]], *arguments: str) -> None:
    """Raise TypeError for a plain function: it would do its work, fail when awaited, and be retried for ever.

    So would a function that cannot be called with ``arguments``, which are their names for the error.
    """
    if not is_async(handler):
        raise TypeError(
            f"a handler is a coroutine function (async def), not {handler!r}; SyncPushConsumer takes plain functions"
        )
    _check_arguments("a handler", handler, arguments)


def check_synchronous(kind: str, function: Callable[..., object], *arguments: str) -> None:
    """Raise TypeError for a coroutine function: called in a thread it would do nothing, but count as success.

    ``arguments`` as in `check_handler`.
    """
    if is_async(function) or not callable(function):
        raise TypeError(f"{kind} of a synchronous client is a plain function (def), not {function!r}")
    _check_arguments(kind, function, arguments)


def _check_arguments(kind: str, function: Callable[..., object], arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a wrapper may add arguments
    except ValueError:  # not known, as of some functions in C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"{kind} is called with ({', '.join(arguments)}), which {function!r} does not accept: {error}"
        ) from None
