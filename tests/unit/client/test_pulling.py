"""What a puller makes of answers that no correct broker gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mq.client import MessageQueue
from mq.client.consume.process_queue import ProcessQueue
from mq.client.consume.pull_loop import Puller, PullSettings
from mq.client.errors import UnreadableAnswer
from mq.client.limits import DEFAULT
from mq.filter.subscription import parse_subscription

pytestmark = pytest.mark.anyio


async def test_backward_answer_of_a_damaged_replica_does_not_end_the_consumer() -> None:
    nothing: Any = None
    remoting: Any = SimpleNamespace(settings=SimpleNamespace(limits=DEFAULT))
    puller = Puller(
        remoting,
        "G",
        parse_subscription("T", "*", None),
        ProcessQueue(MessageQueue("T", "b", 0), 10),
        nothing,
        PullSettings(),
        sub_version=1,
        watch=nothing,
        uploads=nothing,
        on_messages=nothing,
        on_offset_moved=nothing,
    )
    assert puller._receive(memoryview(b""), 10) == ([], 10)
    with pytest.raises(UnreadableAnswer, match="a pull at 10 names the next offset 5"):
        puller._receive(memoryview(b""), 5)
