"""A proxy restarts: clients that opened their telemetry streams again go on, and need not have said anything before."""

from __future__ import annotations

import trio
import trio.testing
from google.protobuf.duration_pb2 import Duration

from mq.client import Admin
from mq.proxy.grpc import CallRefused
from mq.proxy.wire import messaging_pb2 as pb
from mq.testing import Kit
from tests.support.proxies import Call, InMemoryProxy, open_proxy
from tests.support.virtual_time import VIRTUAL_TIME

pytestmark = VIRTUAL_TIME

TOPIC, GROUP = "Orders", "workers"
PUSH = pb.Settings(
    client_type=pb.PUSH_CONSUMER,
    subscription=pb.Subscription(
        group=pb.Resource(name=GROUP),
        subscriptions=[
            pb.SubscriptionEntry(
                topic=pb.Resource(name=TOPIC), expression=pb.FilterExpression(type=pb.TAG, expression="*")
            )
        ],
    ),
)
REOPEN_SECONDS = 1.0
"""After so long, all official clients open a telemetry stream again that has ended."""
GOES_ON_SECONDS = 2.0


class Program:
    """A producer and a push consumer that work as the official clients do, through whatever proxy is there."""

    def __init__(self) -> None:
        self.proxy: InMemoryProxy | None = None
        self.sent_at: list[float] = []
        self.consumed: list[tuple[float, str]] = []
        self.settings_answered = 0
        self.refused: list[str] = []

    async def keep_stream_open(self) -> None:
        while True:
            proxy = self.proxy
            if proxy is not None and not proxy.drain_event.is_set():
                call = Call("c1")
                await call.to_server.send(pb.TelemetryCommand(settings=PUSH).SerializeToString())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._serve_stream, proxy, call)
                    async for data in call.answers:
                        answer = pb.TelemetryCommand.FromString(data)
                        self.settings_answered += answer.HasField("settings") and answer.status.code == pb.OK
            await trio.sleep(REOPEN_SECONDS)

    async def _serve_stream(self, proxy: InMemoryProxy, call: Call) -> None:
        try:
            await proxy.serve("Telemetry", call)
        except CallRefused:
            pass  # the proxy stops

    async def send(self) -> None:
        number = 0
        while True:
            if self.proxy is not None:
                number += 1
                answer = await self.proxy.send(TOPIC, f"m{number}")
                self._note(answer.status)
                self.sent_at.append(trio.current_time())
            await trio.sleep(0.1)

    async def consume(self) -> None:
        while True:
            if self.proxy is None:
                await trio.sleep(0.1)
                continue
            proxy = self.proxy
            beat = await proxy.ask(
                "Heartbeat",
                pb.HeartbeatRequest(group=pb.Resource(name=GROUP), client_type=pb.PUSH_CONSUMER),
                pb.HeartbeatResponse,
            )
            self._note(beat.status)
            status, messages = await proxy.receive(GROUP, TOPIC, auto_renew=True)
            if status.code != pb.MESSAGE_NOT_FOUND:
                self._note(status)
            if messages:
                self._note((await proxy.acknowledge(GROUP, *messages)).status)
            self.consumed += [(trio.current_time(), each.body.decode()) for each in messages]

    def _note(self, status: pb.Status) -> None:
        if status.code != pb.OK:
            self.refused.append(f"{status.code}: {status.message}")


async def test_clients_continue_within_two_seconds_of_a_proxy_restart(kit: Kit) -> None:
    program = Program()
    async with open_proxy(kit) as first, open_proxy(kit) as second, trio.open_nursery() as nursery:
        program.proxy = first
        for work in (program.keep_stream_open, program.send, program.consume):
            nursery.start_soon(work)
        await trio.sleep(5)  # the clients work
        assert (len(program.sent_at) > 40, len(program.consumed) > 30, program.settings_answered) == (True, True, 1)
        program.proxy = None
        first.drain_event.set()
        await trio.sleep(0.7)  # it starts again
        program.proxy = second
        restarted = trio.current_time()
        await trio.sleep(GOES_ON_SECONDS)  # the clients connect again
        assert program.settings_answered == 2
        assert min(at for at in program.sent_at if at > restarted) - restarted < GOES_ON_SECONDS
        assert min(at for at, _ in program.consumed if at > restarted) - restarted < GOES_ON_SECONDS
        assert program.refused == []
        await trio.sleep(5)  # whatever was hidden for the former proxy's clients would come again
        nursery.cancel_scope.cancel()
    bodies = [body for _, body in program.consumed]
    assert len(bodies) == len(set(bodies)) > 80


async def test_stopping_proxy_ends_waiting_receives_and_leaves_messages_visible(kit: Kit) -> None:
    """While it would wait for them, clients could not go on: nobody listens on its port any more."""
    async with open_proxy(kit) as first, open_proxy(kit) as second:
        await first.receive(GROUP, TOPIC)  # the group begins here
        ended: list[tuple[float, pb.Code, int]] = []

        async def receive(renewed: bool) -> None:
            status, messages = await first.receive(
                GROUP, TOPIC, auto_renew=renewed, long_polling_timeout=Duration(seconds=20)
            )
            ended.append((trio.current_time() - began, status.code, len(messages)))

        async with trio.open_nursery() as nursery:
            began = trio.current_time()
            for renewed in (False, True):
                nursery.start_soon(receive, renewed)
            await trio.sleep(3)  # both wait for messages
            first.drain_event.set()
        assert [(code, count) for _, code, count in ended] == [(pb.MESSAGE_NOT_FOUND, 0)] * 2
        assert max(seconds for seconds, _, _ in ended) < 3.5
        await second.send(TOPIC, "one")  # a pop of the first proxy is there before that of the second
        await trio.sleep(0.5)  # the pop of the first proxy takes the message
        await first.wait_given_back()
        stopped = trio.current_time()
        bodies: list[bytes] = []
        while not bodies:
            _, messages = await second.receive(GROUP, TOPIC)
            bodies += [each.body for each in messages]
        assert bodies == [b"one"]
        assert trio.current_time() - stopped < 3


async def test_proxy_serves_clients_with_unknown_settings(kit: Kit, admin: Admin) -> None:
    await admin.create_topic("Payments", 2, message_type="TRANSACTION")
    group, topic = pb.Resource(name=GROUP), pb.Resource(name=TOPIC)
    async with open_proxy(kit) as former:
        await former.receive(GROUP, TOPIC)  # the group begins here
        assert (await former.send(TOPIC, "one", "two")).status.code == pb.OK
        half = await former.send("Payments", "paid", message_type=pb.TRANSACTION)
        status, messages = await former.receive(GROUP, TOPIC)
        assert (status.code, len(messages)) == (pb.OK, 2)
    async with open_proxy(kit) as proxy:
        told = [each.system_properties for each in messages]
        later = pb.ChangeInvisibleDurationRequest(
            group=group, topic=topic, receipt_handle=told[0].receipt_handle, message_id=told[0].message_id
        )
        later.invisible_duration.seconds = 30
        end = pb.EndTransactionRequest(
            topic=pb.Resource(name="Payments"),
            message_id="id-paid",
            transaction_id=half.entries[0].transaction_id,
            resolution=pb.COMMIT,
        )
        statuses = [
            (await proxy.send(TOPIC, "three")).status,
            (await proxy.acknowledge(GROUP, messages[1])).status,
            (await proxy.ask("ChangeInvisibleDuration", later, pb.ChangeInvisibleDurationResponse)).status,
            (await proxy.ask("EndTransaction", end, pb.EndTransactionResponse)).status,
            (
                await proxy.ask(
                    "Heartbeat",
                    pb.HeartbeatRequest(group=group, client_type=pb.PUSH_CONSUMER),
                    pb.HeartbeatResponse,
                )
            ).status,
            (
                await proxy.ask(
                    "NotifyClientTermination",
                    pb.NotifyClientTerminationRequest(group=group),
                    pb.NotifyClientTerminationResponse,
                )
            ).status,
        ]
        assert [pb.Code.Name(status.code) for status in statuses] == ["OK"] * len(statuses)
        for renewed in (False, True):
            await proxy.send(TOPIC, f"for {renewed}")
            status, messages = await proxy.receive(GROUP, TOPIC, auto_renew=renewed)
            assert (status.code, bool(messages)) == (pb.OK, True)
