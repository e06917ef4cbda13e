"""A router for FastAPI: subscribers together with the routes of a web application.

    from fastapi import FastAPI
    from raftmq.faststream.fastapi import RaftmqRouter

    router = RaftmqRouter("127.0.0.1:9876")
    app = FastAPI()
    app.include_router(router)

The broker starts and stops with the application. Handlers get FastAPI's dependencies, and this module's annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

try:
    from fastapi.datastructures import Default
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install fastapi", name=error.name) from error
from faststream._internal.context import ContextRepo as _ContextRepo
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from raftmq.faststream import broker as _broker
from raftmq.faststream import messages as _messages

if TYPE_CHECKING:
    from fastapi import params

    from raftmq.faststream.publisher import RaftmqTopicPublisher

__all__ = ["Context", "ContextRepo", "Logger", "RaftmqBroker", "RaftmqMessage", "RaftmqRouter"]

RaftmqBroker = Annotated[_broker.RaftmqBroker, Context("broker")]
RaftmqMessage = Annotated[_messages.RaftmqMessage, Context("message")]


class RaftmqRouter(StreamRouter[Any]):
    """Routes of FastAPI, and subscribers and publishers of a `RaftmqBroker`, which is its `broker`.

    Takes the arguments of `RaftmqBroker`, those of FastAPI's `APIRouter` (`prefix`, `tags` and `dependencies` are
    those), and of FastStream's routers for FastAPI: `schema_url`, where the application shows AsyncAPI, and
    `setup_state`.
    """

    broker_class = _broker.RaftmqBroker  # type: ignore[mutable-override, unused-ignore]
    broker: _broker.RaftmqBroker  # type: ignore[mutable-override, unused-ignore]

    def __init__(
        self, namesrv: str | Sequence[str] = "127.0.0.1:9876", *, context: _ContextRepo | None = None, **options: Any
    ) -> None:
        super().__init__(namesrv, context=context, **options)

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        dependencies: Iterable[params.Depends] = (),
        response_model: Any = Default(None),  # noqa: B008 - FastAPI's mark for an argument that is not given
        response_model_include: Any = None,
        response_model_exclude: Any = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Any]:
        """Works like `RaftmqBroker.subscriber`, with FastAPI's dependencies and models of responses."""
        return super().subscriber(
            topic,
            dependencies=dependencies,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
            **options,
        )

    def publisher(self, topic: str, **options: Any) -> RaftmqTopicPublisher:  # type: ignore[override]
        """Works like `RaftmqBroker.publisher`."""
        return self.broker.publisher(topic, **options)
