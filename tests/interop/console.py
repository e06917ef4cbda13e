"""The console in front of a broker of Apache RocketMQ: ``python -m tests.interop.console``.

Every page is opened and every change is made. A page about something that RocketMQ's brokers do not have must say so in
words; a change that they do not know must be refused with a reason, and nothing may fail as a fault of the console.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import structlog
import trio

from mq.client import Admin, ClientError, Message, Producer, PushConsumer, ReceivedMessage, TransactionProducer
from mq.console.app import CHANGES, PAGES
from mq.local_cluster import ServersFailed
from tests.interop.clients import SERVERS_VERSION, BuildFailed, build_servers, servers_built
from tests.interop.rocketmq_servers import RocketMQCluster
from tests.support.console_browser import Answer, Browser, console
from tests.support.waiting import until_accepted

TOPIC, GROUP = "Orders", "mail"
MESSAGES = 5
READY_SECONDS = 60.0
SEEN_SECONDS = 30.0

Check = Callable[[str, Answer, bool], None]


async def fill(namesrv: str) -> None:
    """Messages, of which one group got all as dead letters, a timed one, and an open transaction."""

    async def create() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(TOPIC, queues=1)

    await until_accepted(create, ClientError, seconds=READY_SECONDS)
    async with Producer(namesrv) as producer, TransactionProducer(namesrv, "shop", check=_unknown) as deciding:
        for number in range(MESSAGES):
            await producer.send(Message(TOPIC, b'{"n": %d}' % number, tags="new", keys=[f"k{number}"]))
        await producer.send(Message(TOPIC, b"later", delay=300))
        async with deciding.transaction(Message(TOPIC, b"open")) as begun:
            begun.leave_open()
    consumer = PushConsumer(namesrv, GROUP, ordered=False, max_reconsume_times=0, consume_from="first")
    failed = 0

    @consumer.on(TOPIC)
    async def fail(message: ReceivedMessage) -> None:
        nonlocal failed
        failed += 1
        if failed == MESSAGES:
            consumer.stop()
        raise LookupError("no such address")

    async with consumer:
        with trio.fail_after(READY_SECONDS):
            await consumer.run()


async def _unknown(message: ReceivedMessage) -> bool | None:
    return None


def pages_of(broker: str, address: str, member: str) -> dict[str, str]:
    """An address of each page."""
    at = f"topic={TOPIC}&broker={broker}&queue=0"
    found = {
        "/broker-group": f"name={broker}",
        "/members": f"name={broker}",
        "/member-change": f"name={broker}&action=remove&node=n1",
        "/settings": f"address={address}",
        "/topic": f"name={TOPIC}",
        "/delete-topic": f"name={TOPIC}",
        "/messages": f"topic={TOPIC}",
        "/message": f"{at}&offset=0",
        "/tail": f"topic={TOPIC}",
        "/send": f"topic={TOPIC}",
        "/group": f"name={GROUP}",
        "/reset": f"name={GROUP}&topic={TOPIC}&to=first",
        "/delete-group": f"name={GROUP}",
        "/remove-member": f"name={GROUP}&member={member}",
        "/dead-letters": f"group={GROUP}",
        "/account": "name=*",
    }
    return {path: f"{path}?{found[path]}" if path in found else path for path in PAGES if path != "/job"}


MORE = (
    f"/messages?topic={TOPIC}&by=key&value=k1",
    f"/messages?topic={TOPIC}&tags=new",
    f"/messages?topic={TOPIC}&by=time&time=2020-01-01T00:00",
    f"/messages?topic={TOPIC}&sql=TAGS+%3D+'new'",
    f"/tail?topic={TOPIC}&tags=new",
    "/pending?kind=half",
    "/pending?kind=given-up",
    "/groups?order=behind",
    "/topics?kind=all",
)
WITHOUT: dict[str, str] = {
    "/members": "Apache RocketMQ",
    "/member-change": "Apache RocketMQ",
    "/pending": "Apache RocketMQ",
    "/schedules": "Apache RocketMQ",
    "/readers": "Apache RocketMQ",
    "/accounts": "Apache RocketMQ",
    "/account": "Apache RocketMQ",
    "/remove-member": "Apache RocketMQ",
}
"""The pages about what only our brokers have, and what each has to say."""


def words_of(answer: Answer) -> str:
    """What the page says, without tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.content))).strip()


async def play(cluster: RocketMQCluster) -> list[str]:
    """Open every page and make every change; returns a line for each. Raises AssertionError."""
    lines: list[str] = []
    faults: list[str] = []

    def expect(what: str, answer: Answer, statuses: tuple[int, ...], words: str = "") -> None:
        said = words_of(answer)
        lines.append(f"{what}: {answer.status} {said[:160]}")
        if answer.status not in statuses or (words and words not in said):
            faults.append(f"{what}: {answer.status} {said[:400]}")

    async with Admin(cluster.namesrv) as admin:
        address = (await admin.cluster_info()).brokers[cluster.group].broker_addrs[0]
    async with console(cluster.namesrv, allow_changes=True) as browser:
        pages = pages_of(cluster.group, address, "nobody@1")
        for path, page in [*pages.items(), *((each.partition("?")[0], each) for each in MORE)]:
            words = WITHOUT.get(path, "")
            allowed = (200, 400, 404) if words else (200,)
            answer = await browser.get(page)
            expect(page, answer, allowed, words)
            if "sql=" in page:
                assert "enablePropertyFilter" in words_of(answer)
            elif not words and 'role="alert"' in answer.content:
                faults.append(f"{page}: {words_of(answer)[:400]}")
        await changes(browser, cluster.group, address, expect)
    assert not faults, "\n".join(faults)
    return lines


async def changes(
    browser: Browser, broker: str, address: str, expect: Callable[[str, Answer, tuple[int, ...], str], None]
) -> None:
    """Make each change once; those that RocketMQ's brokers do not know are refused with a reason."""
    tried: set[str] = set()

    async def change(path: str, form: dict[str, str], words: str, *, refused: bool = False) -> Answer:
        tried.add(path)
        answer = await browser.post(path, form)
        if refused:
            expect(f"POST {path}", answer, (400, 404, 502), words)
            return answer
        done = await browser.follow(answer) if answer.status == 303 else answer
        expect(f"POST {path}", done, (200,), words if answer.status == 303 else "an answer with status 303")
        return done

    await browser.get("/new-topic")
    await change("/create-topic", {"name": "Bills", "queues": "2"}, "")
    await change("/change-topic", {"name": "Bills", "queues": "4", "access": "read"}, "")
    await change("/change-attribute", {"name": "Bills", "attribute": "message.type", "value": "NORMAL"}, "NORMAL")
    await change("/send", {"name": TOPIC, "body": "by hand", "tag": "new", "keys": "hand"}, "by hand")
    await change("/reset", {"name": GROUP, "topic": TOPIC, "to": "first", "time": ""}, "")
    await change("/enable", {"name": GROUP, "enabled": "no"}, "paused")
    await change("/enable", {"name": GROUP, "enabled": "yes"}, "")
    await change("/change-setting", {"name": address, "setting": "flushDelayOffsetInterval", "value": "9000"}, "9000")
    await change("/requeue", {"group": GROUP, "which": "all", "to": "group"}, "")
    unknown = "Apache RocketMQ"
    await change("/transfer", {"name": broker, "node": ""}, unknown, refused=True)
    await change(
        "/member-change", {"name": broker, "action": "remove", "node": "n1", "typed": "n1"}, unknown, refused=True
    )
    member = {"name": GROUP, "member": "nobody@1", "typed": GROUP, "minutes": "5"}
    await change("/remove-member", member, unknown, refused=True)
    await change("/let-in", member, unknown, refused=True)
    await change("/set-quota", {"name": "somebody", "produce_messages": "5"}, unknown, refused=True)
    schedule = {"name": "nightly", "broker": broker, "action": "pause"}
    await change("/change-schedule", schedule, unknown, refused=True)
    user = {"name": "shop-one", "kind": "Normal", "password": "secret-one", "again": "secret-one", "enabled": "yes"}
    await change("/create-user", user, "", refused=True)
    await change("/change-user", user, "", refused=True)
    policy = {"name": "shop-one", "resource": "Topic:*", "actions": "Pub", "decision": "Allow"}
    await change("/put-policy", policy, "", refused=True)
    await change("/delete-policy", policy, "", refused=True)
    await change("/delete-user", {"name": "shop-one", "typed": "shop-one"}, "", refused=True)
    await change("/recall", {"handle": "nonsense"}, "", refused=True)
    await change("/resume", {"broker": broker, "id": "7F000001000027777FFFFFFFFFFFFFF0"}, "", refused=True)
    await change("/delete-group", {"name": GROUP, "typed": GROUP, "topics": "yes"}, "")
    await change("/delete-topic", {"name": "Bills", "typed": "Bills"}, "")
    assert tried == set(CHANGES), f"not tried: {sorted(set(CHANGES) - tried)}"


async def run(version: str, directory: Path) -> list[str]:
    """Start a broker, fill it, and play. Raises AssertionError, ServersFailed."""
    settings = {"transactionCheckInterval": 1000, "timerWheelEnable": "true"}
    given = {name: str(value) for name, value in settings.items()}
    async with RocketMQCluster.open(directory, settings=given, version=version) as cluster:
        await fill(cluster.namesrv)
        return await play(cluster)


def main(arguments: list[str] | None = None) -> int:
    """0 if all was as it should be."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", default=SERVERS_VERSION)
    given = parser.parse_args(arguments)
    try:
        if not servers_built(given.version):
            build_servers(given.version)
        with tempfile.TemporaryDirectory(prefix="raftmq-console-") as directory:
            print("\n".join(trio.run(run, given.version, Path(directory))))
    except (AssertionError, BuildFailed, ServersFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
