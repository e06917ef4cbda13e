"""Routers: subscribers and publishers that a broker includes later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faststream import AckPolicy
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY

from raftmq.faststream.config import RaftmqBrokerConfig
from raftmq.faststream.registrator import RaftmqRegistrator

__all__ = ["RaftmqPublisher", "RaftmqRoute", "RaftmqRouter"]


class RaftmqPublisher(ArgsContainer):
    """A publisher of a `RaftmqRoute`; takes the arguments of `publisher`."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class RaftmqRoute(SubscriberRoute):
    """A handler of a router; takes the arguments of `subscriber`."""

    def __init__(
        self, call: Callable[..., Any], topic: str, *, publishers: Iterable[RaftmqPublisher] = (), **options: Any
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class RaftmqRouter(RaftmqRegistrator, BrokerRouter[Any, RaftmqBrokerConfig]):
    """Subscribers and publishers for a broker to include; `prefix` precedes their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RaftmqRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RaftmqRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
        underlying_driver_annotations: Any = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RaftmqBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            routers=routers,
        )
