"""Publishers: what `@broker.publisher(topic)` returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from raftmq.faststream.config import PublisherConfig, PublisherSpecConfig, RaftmqBrokerConfig
from raftmq.faststream.messages import RaftmqPublishCommand

__all__ = ["PublisherDescription", "RaftmqTopicPublisher"]


class PublisherDescription(PublisherSpecification[RaftmqBrokerConfig, PublisherSpecConfig]):
    """The AsyncAPI description of a publisher."""

    @property
    def name(self) -> str:
        """The title of the publisher, or its topic."""
        return self.config.title_ or f"{self._outer_config.prefix}{self.config.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Describe the publisher's channel, for AsyncAPI."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {
            self.name: PublisherSpec(
                address=f"{self._outer_config.prefix}{self.config.topic}",
                description=self.config.description_,
                operation=operation,
                bindings=None,
            )
        }


class RaftmqTopicPublisher(PublisherUsecase):
    """Sends to a topic."""

    _outer_config: Any

    def __init__(self, config: PublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self._options = dict(config.options)
        self.headers = config.headers

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    def _command(
        self, message: Any, topic: str, headers: dict[str, Any] | None, options: dict[str, Any]
    ) -> RaftmqPublishCommand:
        correlation_id = options.pop("correlation_id", None) or self._outer_config.id_generator()
        given = {name: value for name, value in options.items() if value is not None}
        return RaftmqPublishCommand(
            message,
            topic=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id,
            **(self._options | given),
        )

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        tags: str | None = None,
        keys: tuple[str, ...] | None = None,
        sharding_key: str | None = None,
        delay: float | None = None,
    ) -> Any:
        """Send, and wait until it is stored. Raises ClientError; its `stored` says whether it may be."""
        cmd = self._command(
            message,
            topic,
            headers,
            {
                "correlation_id": correlation_id,
                "reply_to": reply_to,
                "tags": tags,
                "keys": keys,
                "sharding_key": sharding_key,
                "delay": delay,
                "_publish_type": PublishType.PUBLISH,
            },
        )
        return await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        own = RaftmqPublishCommand.from_cmd(cmd)
        own.destination = self.topic
        own.add_headers(self.headers, override=False)
        own.tags = own.tags or self._options.get("tags")
        own.keys = own.keys or self._options.get("keys", ())
        own.sharding_key = own.sharding_key or self._options.get("sharding_key")
        own.delay = own.delay if own.delay is not None else self._options.get("delay")
        if not own.reply_to:
            own.reply_to = self._options.get("reply_to", "")
        await self._basic_publish(own, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """Send, and wait for the reply. Raises TimeoutError, ClientError."""
        options = {"correlation_id": correlation_id, "timeout": timeout, "_publish_type": PublishType.REQUEST}
        cmd = self._command(message, topic, headers, options)
        return await self._basic_request(cmd, producer=self._outer_config.producer)
