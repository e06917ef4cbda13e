"""The console deletes topics and consumer groups after it has said what is lost, and changes attributes of topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mq.client import Admin, Message, Producer, PullConsumer
from mq.protocol.requests.consumer_groups import SubscriptionGroupConfig
from mq.testing import SyncKit, running_kit
from tests.support.console_browser import Browser


@pytest.fixture
def kit() -> Iterator[SyncKit]:
    with running_kit() as running:
        yield running


async def fill(namesrv: str) -> None:
    """The topic Orders with three messages, of which the group mail has consumed one."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer, PullConsumer(namesrv, "mail") as consumer:
        await admin.create_topic("Orders", queues=1)
        await admin.put_consumer_group(SubscriptionGroupConfig(group_name="mail"))
        results = [await producer.send(Message("Orders", b"%d" % number)) for number in range(3)]
        await consumer.commit({results[0].queue: 1})


async def test_topic_is_deleted_when_its_name_was_typed(kit: SyncKit, operator: Browser) -> None:
    await fill(kit.namesrv)
    page = await operator.get("/topic?name=Orders")
    assert "/delete-topic?name=Orders" in page.content
    preview = await operator.get("/delete-topic?name=Orders")
    for said in ("has 3 messages", "has messages to consume for mail (2)", "has offsets of mail"):
        assert said in preview.content
    for typed in ("", "orders", "Orders2"):
        refused = await operator.post("/delete-topic", {"name": "Orders", "typed": typed})
        assert refused.status == 400
        assert "type Orders to confirm: nothing was changed" in refused.content
    async with Admin(kit.namesrv) as admin:
        assert "Orders" in await admin.topics()
        done = await operator.follow(await operator.post("/delete-topic", {"name": "Orders", "typed": "Orders"}))
        assert "Topic Orders was deleted." in done.text
        assert "Orders" not in await admin.topics()
    changes = await operator.get("/changes")
    assert "Orders, which has 3 messages" in changes.content
    again = await operator.post("/delete-topic", {"name": "Orders", "typed": "Orders"})
    assert again.status != 303, "the second click says that there is no such topic"


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "TBW102"])
async def test_topics_of_the_brokers_are_not_deleted(operator: Browser, topic: str) -> None:
    await operator.get("/new-topic")
    assert (await operator.get(f"/delete-topic?name={topic}")).status == 400
    for address, form in (("/delete-topic", {"typed": topic}), ("/change-attribute", {"attribute": "a"})):
        refused = await operator.post(address, {"name": topic, **form})
        assert refused.status == 400
        assert "belongs to the brokers" in refused.content


async def test_group_is_deleted_when_its_name_was_typed(kit: SyncKit, operator: Browser) -> None:
    await fill(kit.namesrv)
    preview = await operator.get("/delete-group?name=mail")
    assert "has 0 members" in preview.content
    assert "has 2 messages to consume" in preview.content
    assert (await operator.post("/delete-group", {"name": "mail", "typed": "male"})).status == 400
    done = await operator.follow(await operator.post("/delete-group", {"name": "mail", "typed": "mail"}))
    assert "Consumer group mail was deleted." in done.text
    async with Admin(kit.namesrv) as admin:
        assert not await admin.group_progress("mail")
    assert (await operator.get("/delete-group?name=mail")).status == 404


async def test_attribute_is_set_and_removed(kit: SyncKit, operator: Browser) -> None:
    await fill(kit.namesrv)
    await operator.get("/topic?name=Orders")
    form = {"name": "Orders", "attribute": "message.type", "value": "FIFO"}
    done = await operator.follow(await operator.post("/change-attribute", form))
    assert "message.type is FIFO now." in done.text
    async with Admin(kit.namesrv) as admin:
        [config] = (await admin.topic_config("Orders")).values()
        assert config.attributes["message.type"] == "FIFO"
        assert config.read_queue_nums == 1, "all else stays"
    done = await operator.follow(await operator.post("/change-attribute", form | {"value": ""}))
    assert "message.type was removed." in done.text
    for attribute, value in (("reserve.time", "soon"), ("+a", "b"), ("", "b"), ("a\x1b", "b")):
        refused = await operator.post("/change-attribute", form | {"attribute": attribute, "value": value})
        assert refused.status in (400, 502), (attribute, refused.content)
    gone = await operator.post("/change-attribute", form | {"name": "Nope"})
    assert gone.status != 303


async def test_read_only_console_refuses_deletions(kit: SyncKit, browser: Browser) -> None:
    await fill(kit.namesrv)
    for address in ("/delete-topic?name=Orders", "/delete-group?name=mail"):
        page = await browser.get(address)
        assert page.status == 200
        assert "<form" not in page.content
    for address, name in (("/delete-topic", "Orders"), ("/delete-group", "mail"), ("/change-attribute", "Orders")):
        assert (await browser.post(address, {"name": name, "typed": name})).status == 403
