"""`raftmq lite`, and attributes by commands, against a broker of the test kit."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.client import Message, TopicNotFound
from mq.client.sync import SyncAdmin, SyncLiteConsumer, SyncProducer
from mq.testing import running_kit
from tests.support.lite_topics import GROUP, PARENT


def run(namesrv: str, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments, "--namesrv", namesrv])
    if isinstance(done.exception, CommandFailed):
        assert done.exception.exit_code == code, done.exception
        return str(done.exception)
    assert done.exit_code == code, (arguments, done.output, done.exception)
    return done.stdout


def test_lite_topics_by_commands_and_without_an_event_loop() -> None:
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        run(kit.namesrv, "topic", "create", PARENT, "--message-type", "lite", "--attribute", "lite.topic.expiration=60")
        bound = ("--attribute", f"lite.bind.topic={PARENT}")
        assert f"lite.bind.topic={PARENT}" in run(kit.namesrv, "consumer-group", "create", GROUP, *bound)
        with SyncProducer(kit.namesrv, "P") as producer, SyncLiteConsumer(kit.namesrv, GROUP, PARENT) as consumer:
            consumer.subscribe("a", "b")
            for lite in ("a", "a", "b"):
                producer.send(Message(PARENT, b"x", lite_topic=lite))
            assert run(kit.namesrv, "lite", "list").splitlines()[1].split() == [
                PARENT, "broker-a", "2", "60", "min", GROUP,
            ]  # fmt: skip
            shown = run(kit.namesrv, "lite", "describe", PARENT, "a")
            assert "offsets 0 to 2" in shown
            [subscriber] = admin.lite.topic(PARENT, "a")["broker-a"].subscribers
            assert subscriber.client_id in shown
            assert "no messages" in run(kit.namesrv, "lite", "describe", PARENT, "none")
            shown = run(kit.namesrv, "lite", "client", PARENT, GROUP, subscriber.client_id)
            assert [line.strip() for line in shown.splitlines()[1:]] == ["a", "b"]
            assert "has not sent its subscriptions" in run(kit.namesrv, "lite", "client", PARENT, GROUP, "X")
            lag = run(kit.namesrv, "lite", "lag", GROUP).splitlines()
            assert lag[0].startswith(f"broker-a: 3 messages of {PARENT} not consumed by {GROUP}, the oldest of ")
            assert [line.split()[:3] for line in lag[2:]] == [["a", "broker-a", "2"], ["b", "broker-a", "1"]]
            assert "next one to be stored 1" in run(kit.namesrv, "lite", "lag", GROUP, "b")
            assert "there is no lite topic none" in run(kit.namesrv, "lite", "lag", GROUP, "none")
            assert "all clients" in run(kit.namesrv, "lite", "dispatch", GROUP)
            assert "has not sent its subscriptions" in run(
                kit.namesrv, "lite", "dispatch", GROUP, "--client", "X", code=1
            )
            assert "does not exist" in run(kit.namesrv, "lite", "lag", "absent", code=1)
            assert admin.lite.brokers()["broker-a"].topic_count == 2
            assert admin.lite.parent(PARENT)["broker-a"].groups == [GROUP]
            with pytest.raises(TopicNotFound):
                admin.lite.topic("Absent", "a")


def test_attributes_of_groups_are_set_exported_and_imported(tmp_path: Path) -> None:
    file = str(tmp_path / "definitions.json")
    with running_kit() as kit, SyncAdmin(kit.namesrv) as admin:
        run(kit.namesrv, "consumer-group", "create", "G", "--attribute", "priority.factor=80", "--attribute", "a=b")
        assert "a=b, priority.factor=80" in run(kit.namesrv, "consumer-group", "update", "G", "--retries", "3")
        run(kit.namesrv, "export", file)
        after = run(kit.namesrv, "consumer-group", "update", "G", "--attribute", "a=", "--attribute", "c=d")
        assert after.endswith("c=d, priority.factor=80\n")
        assert "everything" not in run(kit.namesrv, "import", file, "--update")
        assert admin.consumer_groups()["G"]["broker-a"].attributes == {"a": "b", "priority.factor": "80"}
        assert "everything exists already" in run(kit.namesrv, "import", file)
        refused = run(kit.namesrv, "consumer-group", "update", "G", "--attribute", "priority.factor=101", code=1)
        assert "not a number from 0 to 100" in refused
        for wrong in ("priority.factor", "=1", "+a=b"):
            assert "is not an attribute" in run(
                kit.namesrv, "consumer-group", "update", "G", "--attribute", wrong, code=2
            )
