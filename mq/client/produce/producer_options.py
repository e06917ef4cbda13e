"""The options of producers, for clients that pass them on to one."""

from __future__ import annotations

from mq.client.options import ClientOptions
from mq.protocol.messages.compression import Codec


class ProducerOptions(ClientOptions, total=False):
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
    numbered: bool | str
    first_number: int | None
