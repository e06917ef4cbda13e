"""Registers this broker and its topics at every name server.

Name servers do not communicate with each other, so each has its own task and connection. The connection stays open:
when this process dies, the name server sees it close and removes the broker from routes at once.

Each name server gets a full registration first and periodically, and changed topics in between. With thousands of
topics a body has some megabytes, so it is encoded in a worker thread.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

import trio

from mq.broker.base.name_server_stream import Stream, open_stream, receive_response
from mq.broker.base.rate_limited_log import Log
from mq.credentials import Credentials, CredentialsInvalid
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.errors import ProtocolError
from mq.protocol.requests.registration import RegisterBrokerExt
from mq.protocol.wire.encoding import encode_request
from raftlog import format_address, this_machine

CONNECT_SECONDS_MAX = 3.0
ANSWER_SECONDS_MAX = 3.0
RETRY_SECONDS = 1.0
CONFIRM_SECONDS = 2.0
"""The delay of one more full registration after changed topics: a tool that deletes a topic, at brokers and then at
name servers, may delete the route of a topic that was created again in between.
"""
_TOPICS_AT_ONCE = 100
"""Above this number of topics, a worker thread encodes the body."""

Address = tuple[str, int]


class Registration(NamedTuple):
    """A broker's registration at a name server.

    ``body`` encodes the register-broker body with ``topic_count`` topics; it may run later in another thread, on a
    consistent copy. ``whole`` says that it contains all topics.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    body: Callable[[], bytes]
    topic_count: int
    whole: bool


class _News:
    """Changes that a name server has not received yet."""

    def __init__(self) -> None:
        self.all_topics = True
        self.topics: set[str] = set()

    def drain(self) -> set[str] | None:
        """Return the changed topics, or None for all; afterwards nothing is pending."""
        topics = None if self.all_topics else self.topics
        self.all_topics, self.topics = False, set()
        return topics


class Registrar:
    """Keeps this broker registered at every name server.

    ``current(topics)`` returns a registration with at least these topics, or with all for None; it returns None while
    there is nothing to register. ``credentials`` returns the keys for signing, as they are now, or None to sign
    nothing; it may raise CredentialsInvalid and OSError.
    """

    def __init__(
        self,
        *,
        namesrv: list[Address],
        period_seconds: float,
        current: Callable[[Collection[str] | None], Registration | None],
        tls: ssl.SSLContext | None = None,
        credentials: Callable[[], Credentials | None] = lambda: None,
        confirm_seconds: float = CONFIRM_SECONDS,
        log: Log,
    ) -> None:
        self._confirm_seconds = confirm_seconds
        self._tls = tls
        self._credentials = credentials
        self._namesrv = namesrv
        self._period_seconds = period_seconds
        self._current = current
        self._log = log
        self._change_event = trio.Event()
        self._news = {address: _News() for address in namesrv}

    def announce(self, topics: Iterable[str] | None = None) -> None:
        """Register again at once, because ``topics`` changed or, for None, the role of this replica."""
        for news in self._news.values():
            if topics is None:
                news.all_topics = True
            else:
                news.topics.update(topics)
        self._change_event.set()
        self._change_event = trio.Event()

    async def run(self) -> None:
        """Register at all name servers until cancelled. Then unregister, with a short timeout."""
        async with trio.open_nursery() as nursery:
            for address in self._namesrv:
                nursery.start_soon(self._keep_registered, address)

    async def _keep_registered(self, address: Address) -> None:
        log = self._log.bind(namesrv=format_address(address))
        last_text = ""
        while True:
            try:
                # Read again for each connection: after a refusal, the file may have other keys.
                credentials = self._credentials()
                with trio.fail_after(CONNECT_SECONDS_MAX):
                    stream = await open_stream(address, self._tls)
                async with stream:
                    await self._register_forever(stream, credentials, self._news[address], log)
            except _FAILURES as error:
                if (text := str(error) or type(error).__name__) != last_text:
                    last_text = text
                    log.warning("not_registered", error=text)
            await trio.sleep(RETRY_SECONDS)

    async def _register_forever(self, stream: Stream, credentials: Credentials | None, news: _News, log: Log) -> None:
        opaque = 0
        last_registration: Registration | None = None
        news.all_topics = True
        while True:
            change_event = self._change_event
            topics = news.drain()
            registration = self._current(topics)
            if registration is not None:
                opaque += 1
                if registration.topic_count > _TOPICS_AT_ONCE:
                    request = await this_machine().in_thread(partial(_request, registration, opaque, credentials))
                else:
                    request = _request(registration, opaque, credentials)
                await self._ask(stream, request, opaque)
                if last_registration is None or last_registration.broker_id != registration.broker_id:
                    log.info("registered", broker_id=registration.broker_id, address=registration.address)
                last_registration = registration
            seconds = self._period_seconds if topics is None else min(self._confirm_seconds, self._period_seconds)
            with trio.move_on_after(seconds) as wait_scope:
                if not await _wait_changed(change_event, stream):
                    raise _RegistrationRefused("the name server closed the connection")
            if wait_scope.cancelled_caught or registration is None:
                news.all_topics = True

    async def _ask(self, stream: Stream, request: bytes, opaque: int) -> None:
        with trio.fail_after(ANSWER_SECONDS_MAX):
            await stream.send_all(request)
            response, _ = await receive_response(stream, opaque)
        if response.code != ResponseCode.SUCCESS:
            raise _RegistrationRefused(f"code {response.code}: {response.remark}")


class _RegistrationRefused(Exception):
    """The name server refused the registration."""


_FAILURES = (
    OSError,
    trio.BrokenResourceError,
    trio.TooSlowError,
    ProtocolError,
    CredentialsInvalid,
    _RegistrationRefused,
)


async def _wait_changed(change_event: trio.Event, stream: Stream) -> bool:
    """Wait for ``change_event``; returns False if the name server closed the connection first."""
    is_open = True
    async with trio.open_nursery() as nursery:

        async def watch() -> None:  # noqa: ASYNC910 - receiving is a checkpoint, also when it fails
            nonlocal is_open
            try:
                is_open = bool(await stream.receive_some(1))
            except trio.BrokenResourceError:
                is_open = False
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        await change_event.wait()
        nursery.cancel_scope.cancel()
    return is_open


def _request(registration: Registration, opaque: int, credentials: Credentials | None) -> bytes:
    body = registration.body()
    fields = RegisterBrokerExt(
        address=registration.address,
        broker_id=registration.broker_id,
        broker_name=registration.broker_name,
        cluster=registration.cluster,
        ha_server_address=registration.address,
        compressed=False,
        whole=registration.whole,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    ).fields()
    if credentials is not None:
        fields = credentials.sign(RequestCode.REGISTER_BROKER, fields, body)
    return encode_request(RequestCode.REGISTER_BROKER, opaque, ext=fields, body=body)
