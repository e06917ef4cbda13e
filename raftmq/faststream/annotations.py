"""What handlers ask for by its type."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from faststream import Context
from faststream._internal.configs import UnderlyingDriverAnnotation

from raftmq.faststream import messages

__all__ = ["RaftmqMessage", "driver_annotations"]

RaftmqMessage = Annotated[messages.RaftmqMessage, Context("message")]


def driver_annotations() -> MappingProxyType[Any, Any]:
    """For FastStream's advice to those who use a class where it needs one of these."""
    return MappingProxyType(
        {
            messages.RaftmqMessage: UnderlyingDriverAnnotation(
                type_hint=RaftmqMessage, module="raftmq.faststream", name="RaftmqMessage"
            )
        }
    )
