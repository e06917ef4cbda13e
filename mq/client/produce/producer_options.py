"""The options of producers, for clients that pass them on."""

from __future__ import annotations

import random
from typing import TypedDict

from mq.client.events import OnEvent
from mq.client.metrics.recorder import ClientMetrics
from mq.client.net.client_core import RemotingSettings
from mq.client.spans import TracerProvider
from mq.protocol.messages.compression import Codec


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of `Producer`, but for `codec`, which has a type of its own."""

    timeout: float
    attempt_timeout: float
    retries: int
    retry_unknown: bool
    in_flight_max: int
    linger: float | None
    batch_bytes: int
    compress: Codec | None
    compress_bytes_min: int
    auto_create_topics: bool
    trace: bool | str
    otel: bool | TracerProvider
    metrics: ClientMetrics | None
    ping: bool
    on_event: OnEvent | None
    remoting: RemotingSettings | None
    rng: random.Random | None
    numbered: bool | str
    first_number: int | None
