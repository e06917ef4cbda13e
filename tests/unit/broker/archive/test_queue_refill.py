"""The refill of queues from the archive."""

from __future__ import annotations

from unittest.mock import MagicMock, call

import pytest

from mq.broker.archive.queue_refill import QueueRefill
from mq.broker.base.archive_tier import QUEUES_FROM


@pytest.mark.parametrize("lacks_older", [False, True])
def test_start_stores_the_beginnings_of_incomplete_queues(lacks_older: bool) -> None:
    context = MagicMock()
    context.tier.lacks_older = lacks_older
    context.replica.log.notes = {QUEUES_FROM: b"131072"}
    QueueRefill(context)
    assert context.replica.remember.call_args_list == [call(QUEUES_FROM, b"131072")] * lacks_older
