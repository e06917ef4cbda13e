"""The Python client of raftmq and RocketMQ: produce to, consume from and administer brokers, on trio or asyncio.

    from raftmq import Message, Producer, PushConsumer

This is `mq.client` under the name of its distribution. `raftmq.sync` is the same for programs without an event loop.
"""

import mq.client
from mq.client import *  # noqa: F403 - these are the names of the SDK, all of them

__all__: list[str] = []
__all__ += mq.client.__all__
