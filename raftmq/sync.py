"""The client for programs without an event loop: `mq.client.sync` under the name of its distribution."""

import mq.client.sync
from mq.client.sync import *  # noqa: F403 - as in `raftmq`

__all__: list[str] = []
__all__ += mq.client.sync.__all__
