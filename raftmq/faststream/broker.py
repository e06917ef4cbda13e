"""The broker of FastStream: what applications make."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from fast_depends import dependency_provider
from faststream import AckPolicy
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from mq.client import ClientError, Producer, RemotingSettings
from mq.client.net.client_core import parse_addresses
from raftmq.faststream.config import RaftmqBrokerConfig
from raftmq.faststream.messages import RaftmqPublishCommand
from raftmq.faststream.producer import RaftmqProducer
from raftmq.faststream.registrator import RaftmqRegistrator

__all__ = ["RaftmqBroker"]

PING_SECONDS = 2.0


class _Logs(DefaultLoggerStorage):
    def __init__(self) -> None:
        super().__init__()
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing: the columns have no width to adjust."""

    def get_logger(self, *, context: ContextRepo) -> Any:
        logger = self._get_logger_ref()
        if not logger:
            logger = get_broker_logger(
                name="raftmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=10,
                fmt="%(asctime)s %(levelname)-8s - %(group)s | %(topic)s | %(message_id)-10s - %(message)s",
                context=context,
                log_level=self._level,
            )
            self._logger_ref.add(logger)
        return logger


class RaftmqBroker(RaftmqRegistrator, BrokerUsecase[Any, Producer, RaftmqBrokerConfig]):
    """Sends messages to topics of raftmq or RocketMQ, and calls handlers with the topics' messages.

    `remoting` is for accounts, TLS and time-outs, `otel` for OpenTelemetry as in the SDK; `linger` collects messages
    that are published at the same time. The rest is as in other brokers of FastStream.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] = "127.0.0.1:9876",
        *,
        producer_group: str = "faststream",
        linger: float | None = None,
        remoting: RemotingSettings | None = None,
        otel: Any = False,
        graceful_timeout: float | None = 15.0,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RaftmqRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: Any = gen_cor_id,
        specification_url: str | Iterable[str] | None = None,
        protocol: str = "rocketmq",
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        security: Any = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        underlying_driver_annotations: Any = None,
    ) -> None:
        urls = specification_url or list(parse_addresses(namesrv))
        super().__init__(
            namesrv=namesrv,
            producer_group=producer_group,
            linger=linger,
            remoting=remoting,
            otel=otel,
            routers=routers,
            config=RaftmqBrokerConfig(
                namesrv=namesrv,
                remoting=remoting,
                consumer_options={"otel": otel},
                producer=RaftmqProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=_Logs),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            specification=BrokerSpec(
                description=description,
                url=[urls] if isinstance(urls, str) else list(urls),
                protocol=protocol,
                protocol_version=protocol_version,
                tags=tags,
                security=security,
            ),
        )

    async def _connect(self) -> Producer:
        given = self._connection_kwargs
        producer = Producer(
            given["namesrv"],
            given["producer_group"],
            linger=given["linger"],
            remoting=given["remoting"],
            otel=given["otel"],
        )
        await producer.open()
        config = self.config.broker_config
        config.producer.connect(producer, config.fd_config._serializer, config.broker_codec)
        return producer

    async def start(self) -> None:
        """Connect, and begin to handle messages. Raises ClientError."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Wait for handlers and for messages in flight, and disconnect."""
        await super().stop(exc_type, exc_val, exc_tb)
        producer, self._connection = self._connection, None
        config = self.config.broker_config
        config.producer.connect(None, None, config.broker_codec)
        if producer is not None:
            await producer.aclose()

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether a name server and the leader of a broker group answer."""
        if self._connection is None:
            return False
        try:
            await self._connection.ping(timeout=timeout or PING_SECONDS)
        except ClientError:
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        tags: str | None = None,
        keys: tuple[str, ...] = (),
        sharding_key: str | None = None,
        delay: float | None = None,
    ) -> Any:
        """Send, and wait until it is stored; returns the `SendResult`.

        Raises ClientError; its `stored` says whether the message may be stored. What a handler returns is sent to the
        topic `reply_to`.
        """
        cmd = RaftmqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            tags=tags,
            keys=keys,
            sharding_key=sharding_key,
            delay=delay,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._basic_publish(cmd, producer=self.config.producer)

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tags: str | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """Send, and wait for the reply of a handler. Raises TimeoutError, ClientError."""
        cmd = RaftmqPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            tags=tags,
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return await self._basic_request(cmd, producer=self.config.producer)
