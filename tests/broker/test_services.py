"""What services say about the requests that they serve, and how they are told who leads."""

import ast
import inspect
from pathlib import Path

import pytest

from mq.broker import broker as broker_module
from mq.broker.broker import Broker
from mq.broker.consume.queue_locks import QueueLockService
from mq.broker.pop.pop import Pops
from mq.broker.replication.forwarder import Forwarder
from mq.broker.services import Services
from mq.protocol.requests import clients, filters, lite, offsets, pending, pop, transactions
from tests.support.running_broker import running

REPEATABLE = {
    filters.PutFilter,
    transactions.EndTransaction,
    clients.LockBatchMq,
    clients.UnlockBatchMq,
    offsets.UpdateConsumerOffset,
    lite.AckLiteMessage,
    lite.GetBrokerLiteInfo,
    lite.GetLiteClientInfo,
    lite.GetLiteGroupInfo,
    lite.GetLiteTopicInfo,
    lite.GetParentTopicInfo,
    lite.PopLiteMessage,
    lite.TriggerLiteDispatch,
    transactions.ResumeCheckHalfMessage,
    pending.AskPending,
    pop.AckMessage,
    pop.BatchAckMessage,
    pop.ChangeMessageInvisibleTime,
    pop.Notification,
    pop.PeekMessage,
    pop.PollingInfo,
    pop.PopMessage,
}
"""Whatever is added here must come to the same if it is done twice, whatever others ask for in between."""


async def test_forwarder_repeats_only_repeatable_requests(tmp_path: Path, brokers: list[Broker]) -> None:
    async with running(tmp_path):
        assert brokers[0].services.forwarder.repeatable == REPEATABLE


async def test_forwarder_is_notified_of_leadership_last_and_of_resignation_first(
    tmp_path: Path, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other services give back when they resign goes to the replica that leads now."""
    told: list[str] = []
    for kind in (QueueLockService, Pops, Forwarder):
        for event in ("lead", "resign"):
            monkeypatch.setattr(
                kind, event, lambda service, event=event: told.append(f"{type(service).__name__} {event}s")
            )
    async with running(tmp_path):
        told.clear()
        brokers[0].services.lead()
        brokers[0].services.resign()
    assert told == [
        "QueueLockService leads",
        "Pops leads",
        "Forwarder leads",
        "Forwarder resigns",
        "Pops resigns",
        "QueueLockService resigns",
    ]


def test_broker_does_not_look_up_services_by_name() -> None:
    tree = ast.parse(inspect.getsource(broker_module))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.services"
    }
    told = {name for name, value in vars(Services).items() if inspect.isfunction(value)}
    assert used - told == {"requests", "periodic", "tasks", "end_turns"}
