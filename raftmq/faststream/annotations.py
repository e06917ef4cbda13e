"""The annotated type by which a handler asks for its message."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from faststream import Context
from faststream._internal.configs import UnderlyingDriverAnnotation

from raftmq.faststream import messages

__all__ = ["RaftmqMessage", "driver_annotations"]

RaftmqMessage = Annotated[messages.RaftmqMessage, Context("message")]


def driver_annotations() -> MappingProxyType[Any, Any]:
    """Map the message class to the annotation that FastStream suggests to handlers that name the class itself."""
    return MappingProxyType(
        {
            messages.RaftmqMessage: UnderlyingDriverAnnotation(
                type_hint=RaftmqMessage, module="raftmq.faststream", name="RaftmqMessage"
            )
        }
    )
