"""Uploads the filter program of a consumer to filter servers, once for all of its queues."""

from __future__ import annotations

import math
import zlib
from typing import Final

import anyio

from mq.client.logs import log
from mq.client.net.connection import Connection
from mq.filter.subscription import FilterProgram
from mq.protocol.codes import RequestCode
from mq.protocol.requests.filters import RegisterFilterClassExt

UPLOAD_SECONDS: Final = 15.0


class FilterUploads:
    """Uploads the filter programs of one consumer."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._locks: dict[tuple[str, str, str], anyio.Lock] = {}
        self._done_at: dict[tuple[str, str, str], float] = {}

    async def upload(self, connection: Connection, topic: str, program: FilterProgram, asked_at: float) -> None:
        """Upload a program to a filter server that answered at `asked_at` that it does not have it.

        Does nothing if that was done since. Raises ClientError.
        """
        key = connection.address, topic, program.name.text
        async with self._locks.setdefault(key, anyio.Lock()):
            if self._done_at.get(key, -math.inf) >= asked_at:
                return
            ext = RegisterFilterClassExt(
                consumer_group=self._group,
                topic=topic,
                class_name=program.name.text,
                class_crc=zlib.crc32(program.content) & 0x7FFFFFFF,
            )
            code = RequestCode.REGISTER_MESSAGE_FILTER_CLASS
            await connection.call(code, ext.fields(), program.content, timeout=UPLOAD_SECONDS)
            self._done_at[key] = anyio.current_time()
            log.info("filter_uploaded", group=self._group, topic=topic, address=connection.address)
