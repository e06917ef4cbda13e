"""The Python client of raftmq and RocketMQ: produce to, consume from and administer brokers, on trio or asyncio.

    from raftmq import Message, Producer, PushConsumer

This is `mq.client` under the name of its distribution. `raftmq.sync` is the same for programs without an event loop.
"""

import typing as _typing

import mq.client

if _typing.TYPE_CHECKING:
    from mq.client import *  # noqa: F403 - these are the names of the SDK, all of them

__all__: list[str] = []
__all__ += mq.client.__all__


def __getattr__(name: str) -> _typing.Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(mq.client, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
