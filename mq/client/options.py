"""The options that all clients have that send or receive messages."""

from __future__ import annotations

import random
from typing import TypedDict

from mq.client.events import OnEvent
from mq.client.metrics.recorder import ClientMetrics
from mq.client.net.client_core import RemotingSettings
from mq.client.spans import TracerProvider


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of every producer and consumer; see `Producer`."""

    otel: bool | TracerProvider
    metrics: ClientMetrics | None
    ping: bool
    on_event: OnEvent | None
    remoting: RemotingSettings | None
    rng: random.Random | None
