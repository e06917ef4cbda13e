"""Connects a filter server to its broker group: registration, programs, permissions, messages."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog
import trio

from mq.client.errors import BrokerError, ClientError, NoRoute, TopicNotFound
from mq.client.net.client_core import ClientCore, RemotingSettings
from mq.client.net.leader_calls import PAUSE_SECONDS, Repeat, call_leader, is_busy, leader_address
from mq.client.net.replies import fields_of
from mq.filter.programs import ProgramName, parse_program_name
from mq.protocol.codes import RequestCode
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.clients import HeartbeatData, ProducerData
from mq.protocol.requests.filters import (
    FilterExt,
    FilterServerRegistered,
    FilterVersion,
    Judged,
    JudgeRequestExt,
    RegisterFilterServerExt,
)
from mq.protocol.requests.pull import PULL_ANSWERS, PullExt

REGISTER_SECONDS: Final = 5.0
"""A broker forgets a filter server after 30 s."""
_ASK_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 5.0

Log = structlog.stdlib.BoundLogger


class BrokerLink:
    """The connections to one broker group. Made by `open`.

    Attributes:
        broker_name: name of the broker group; empty until the first registration.
        trouble: why the last registration failed; None if it did not.
    """

    def __init__(self, core: ClientCore, broker: str, log: Log) -> None:
        self._core = core
        self._broker = broker
        self._log = log
        self.broker_name = ""
        self.trouble: str | None = "not registered yet"

    @classmethod
    @asynccontextmanager
    async def open(
        cls, name_servers: Sequence[str], broker: str, client_id: str, settings: RemotingSettings, log: Log
    ) -> AsyncGenerator[BrokerLink]:
        """Return a link for the block. It connects when it has to."""
        heartbeat = HeartbeatData(client_id=client_id, producers=[ProducerData("raftmq-filter-server")]).encode()
        async with ClientCore.open(name_servers, heartbeat_body=lambda: heartbeat, settings=settings) as core:
            yield cls(core, broker, log)

    async def stay_registered(self, address: str) -> None:
        """Register at the broker again and again until cancelled, so that the broker's route has `address`."""
        code, ext = RequestCode.REGISTER_FILTER_SERVER, RegisterFilterServerExt(address=address).fields()
        while True:
            try:
                connection = await self._core.connection(self._broker)
                response, _ = await connection.call(code, ext, timeout=_ASK_SECONDS)
                registration = fields_of(FilterServerRegistered, response)
                if self.trouble is not None:
                    self._log.info("registered", broker=registration.broker_name, address=address)
                self.broker_name, self.trouble = registration.broker_name, None
            except ClientError as error:
                if self.trouble != str(error):
                    self.trouble = str(error)
                    self._log.warning("not_registered", broker=self._broker, error=self.trouble)
            await trio.sleep(REGISTER_SECONDS if self.trouble is None else REGISTER_SECONDS / 5)

    async def put(self, group: str, topic: str, name: ProgramName, content: bytes) -> None:
        """Store the filter of a group. Raises ClientError."""
        ext = FilterExt(consumer_group=group, topic=topic, program=name.text)
        await self._ask(topic, RequestCode.PUT_FILTER, ext.fields(), content)

    async def get(self, group: str, topic: str, name: ProgramName) -> bytes:
        """Return the bytes of a program. Raises ClientError: BrokerError with FILTER_DATA_NOT_EXIST or
        FILTER_DATA_NOT_LATEST if the group does not have this filter.
        """
        ext = FilterExt(consumer_group=group, topic=topic, program=name.text)
        return bytes(await self._ask(topic, RequestCode.GET_FILTER, ext.fields(), b""))

    async def get_current(self, group: str, topic: str) -> tuple[ProgramName, bytes]:
        """Return the present program of a group and its name. Raises ClientError, ProgramInvalid."""
        ext = FilterExt(consumer_group=group, topic=topic, program="")
        response, content = await self._answer(topic, RequestCode.GET_FILTER, ext.fields(), b"")
        return parse_program_name(fields_of(FilterVersion, response).program), bytes(content)

    async def judge(self, topic: str, address: str, frame: bytes, volume: tuple[int, int] = (0, 0)) -> Judged:
        """Ask the broker whether the sender of a request, at `address`, may make it.

        A limited user is charged for ``volume``, in messages and bytes.

        Raises ClientError: BrokerError with the reason if the sender may not make the request.
        """
        ext = JudgeRequestExt(address=address, messages=volume[0], record_bytes=volume[1]).fields()
        response, _ = await self._answer(topic, RequestCode.JUDGE_REQUEST, ext, frame)
        return fields_of(Judged, response)

    async def _ask(self, topic: str, code: int, ext: dict[str, str], body: bytes) -> memoryview:
        _, answer = await self._answer(topic, code, ext, body)
        return answer

    async def _answer(self, topic: str, code: int, ext: dict[str, str], body: bytes) -> tuple[Response, memoryview]:
        return await call_leader(
            self._core, topic, self._name(topic), code, ext, body, seconds=_ASK_SECONDS, repeat=Repeat.ALWAYS
        )

    async def pull(self, request: PullExt, deadline: float) -> tuple[Response, memoryview]:
        """Send a pull to the leader and return the response, for which the leader waits until `deadline` at most.

        Raises ClientError if the leader refuses the pull, or no leader has answered by then.
        """
        refresh = False
        while True:
            seconds = max(deadline - trio.current_time(), 0.0)
            ext = msgspec.structs.replace(request, suspend_timeout_ms=math.ceil(1000 * seconds)).fields()
            try:
                address = await leader_address(self._core, request.topic, self._name(request.topic), refresh=refresh)
                connection = await self._core.connection(address)
                response, body = await connection.request(
                    RequestCode.PULL_MESSAGE, ext, timeout=seconds + _ANSWER_SECONDS, may_be_held=True
                )
                if response.code in PULL_ANSWERS:
                    return response, body
                raise BrokerError(response.code, response.remark, address)
            except TopicNotFound:
                raise
            except ClientError as error:
                may_pass = not isinstance(error, BrokerError) or is_busy(error)
                if not may_pass or trio.current_time() + PAUSE_SECONDS >= deadline:
                    raise
            refresh = True
            await trio.sleep(PAUSE_SECONDS)

    def _name(self, topic: str) -> str:
        if not self.broker_name:
            raise NoRoute(topic, f"this filter server is not registered at its broker {self._broker}: {self.trouble}")
        return self.broker_name
