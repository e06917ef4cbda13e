"""gRPC clients of two proxies, which faults kill, pause and stop: they send, receive, acknowledge and give back.

Each call is sent to any proxy, so receipt handles of one are used at the other. A proxy that has ended is started
again. Besides the faults of a run, proxies are stopped with SIGTERM now and then, as for an upgrade. For the faults,
proxies are clients in processes of their own.
"""

from __future__ import annotations

import itertools
import random
import signal
from typing import ClassVar, Final

import trio

from checkers.recording import Worker
from jepsen.clients.grpc import CallFailed, GrpcConnection, open_grpc
from jepsen.deployments.cluster import GROUP, Cluster
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of, unique_key_of, value_of
from jepsen.recorder import Recorder
from jepsen.workloads.own_servers import REST_SECONDS, OwnServers
from jepsen.workloads.workload import SIZES, Workload
from mq.protocol.names import pop_retry_topic
from mq.protocol.requests.receipts import NORMAL
from mq.proxy.mapping.handles import Handle
from mq.proxy.wire import messaging_pb2 as pb

PROXIES: Final = ("p0", "p1")
PRODUCERS = 4
CONSUMERS = 4
CONSUMER_GROUP = "jepsen_grpc"
INVISIBLE_MS: Final = 10_000
"""The least that proxies allow."""
RENEWED_MS: Final = 60_000
RENEWED_CHANCE = 0.2
"""The chance of a receive whose messages the proxy keeps hidden."""
POLL_SECONDS: Final = 5
CALL_SECONDS: Final = 8.0
SEND_SECONDS: Final = (2.0, 5.0)
HANDLE_SECONDS_MAX = 0.1
FORGET_CHANCE = 0.02
GIVE_BACK_CHANCE = 0.02
GIVE_BACK_MS: Final = 100
CALLS_PER_CONNECTION = (5, 50)
UPGRADE_SECONDS = (6.0, 12.0)
"""Between two stops of a proxy."""
START_SECONDS_MAX = 30.0


class GrpcWorkload(Workload):
    name = "grpc"
    summary = "gRPC clients behind two proxies that are stopped, with messages acknowledged, given back or forgotten"
    drain_seconds_max: ClassVar[float] = 60 + RENEWED_MS / 1000 + 15
    """A proxy keeps messages hidden until their client has been silent for a minute; then they are for another one."""

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._servers = OwnServers(cluster, PROXIES)
        self._settled_values: set[str] = set()
        """Values whose acknowledgement may have taken effect."""
        self._clients = itertools.count(1)

    async def produce(self) -> None:
        """Run the producers until stopped."""
        async with trio.open_nursery() as nursery:
            for _ in range(PRODUCERS):
                nursery.start_soon(self._produce, random.Random(self.rng.random()))

    async def consume(self) -> None:
        """Run the proxies, and all consumers."""
        command = ("proxy", "--namesrv", self.cluster.namesrv, "--set", "drain_seconds=2")
        async with trio.open_nursery() as nursery:
            for name in PROXIES:
                nursery.start_soon(self._servers.run, name, *command)
            nursery.start_soon(self._upgrade, random.Random(self.rng.random()))
            for _ in range(CONSUMERS):
                nursery.start_soon(self._consume, random.Random(self.rng.random()))

    async def wait_drained(self) -> None:
        """Wait until consumers have acknowledged every message that was acknowledged to its producer."""
        await self._wait_none_left(lambda: len(self.acknowledged_values - self._settled_values))

    # -- proxies -----------------------------------------------------------------------------------------------------

    async def _upgrade(self, rng: random.Random) -> None:
        """Stop one proxy after the other while the run has faults."""
        while not self.stopping.is_set():
            await trio.sleep(rng.uniform(*UPGRADE_SECONDS))
            name = rng.choice(PROXIES)
            if self._servers.ready_events[name].is_set() and not self.stopping.is_set():
                self.cluster.send_signal(name, signal.SIGTERM)

    # -- producers ---------------------------------------------------------------------------------------------------

    async def _produce(self, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        while not self.stopping.is_set():
            name = rng.choice(PROXIES)
            await self._servers.ready_events[name].wait()
            try:
                async with open_grpc(self._servers.ports[name], f"producer-{next(self._clients)}") as proxy:
                    for _ in range(rng.randrange(*CALLS_PER_CONNECTION)):
                        if proxy.is_lost or self.stopping.is_set():
                            break
                        await self._send(worker, proxy, rng)
                        await trio.sleep(REST_SECONDS * rng.random())
            except OSError:
                await trio.sleep(REST_SECONDS)  # it is being started

    async def _send(self, worker: Worker, proxy: GrpcConnection, rng: random.Random) -> None:
        value = new_value(worker.process, worker.next_number(), rng.choice(SIZES))
        system_properties = pb.SystemProperties(
            message_id=unique_key_of(value), message_type=pb.NORMAL, tag=tag_of(value), keys=[value]
        )
        message = pb.Message(
            topic=pb.Resource(name=self.topic),
            body=body_of(value),
            system_properties=system_properties,
            user_properties=properties_of(value),
        )
        request = pb.SendMessageRequest(messages=[message])
        worker.invoke("proxied-send", v=value)
        try:
            [answer] = await proxy.call("SendMessage", request.SerializeToString(), rng.choice(SEND_SECONDS))
        except CallFailed as error:
            worker.info("proxied-send", str(error), v=value, again=True)
            return
        except trio.Cancelled:
            worker.info("proxied-send", "the run has ended", v=value, again=True)
            raise
        response = pb.SendMessageResponse.FromString(answer)
        status = response.entries[0].status if response.entries else response.status
        if status.code != pb.OK:
            worker.info("proxied-send", f"{status.code}: {status.message}", v=value, again=True)
            return
        worker.ok("proxied-send", v=value, again=True)
        self.acknowledged_values.add(value)
        self.acknowledged.add((value, response.entries[0].offset))

    # -- consumers ---------------------------------------------------------------------------------------------------

    async def _consume(self, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        while True:
            name = rng.choice(PROXIES)
            await self._servers.ready_events[name].wait()
            try:
                async with open_grpc(self._servers.ports[name], f"consumer-{next(self._clients)}") as proxy:
                    for _ in range(rng.randrange(*CALLS_PER_CONNECTION)):
                        if proxy.is_lost:
                            break
                        await self._receive(worker, proxy, rng)
            except OSError:
                await trio.sleep(REST_SECONDS)

    async def _receive(self, worker: Worker, proxy: GrpcConnection, rng: random.Random) -> None:
        renewed = rng.random() < RENEWED_CHANCE
        invisible_ms = RENEWED_MS if renewed else INVISIBLE_MS
        request = pb.ReceiveMessageRequest(
            group=pb.Resource(name=CONSUMER_GROUP),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=self.topic), id=-1, broker=pb.Broker(name=GROUP)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=rng.choice((1, 8, 32)),
            auto_renew=renewed,
        )
        request.long_polling_timeout.seconds = POLL_SECONDS
        if not renewed:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        worker.invoke("pop", o=invisible_ms)
        try:
            data = await proxy.call("ReceiveMessage", request.SerializeToString(), CALL_SECONDS)
        except CallFailed as error:
            worker.info("pop", str(error))
            return
        except trio.Cancelled:
            worker.info("pop", "the run has ended")
            raise
        responses = [pb.ReceiveMessageResponse.FromString(each) for each in data]
        messages = [response.message for response in responses if response.HasField("message")]
        status = responses[0].status if responses else pb.Status()
        if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            worker.info("pop", f"{status.code}: {status.message}")
            await trio.sleep(0.1)
            return
        rows = [(message, *self._place(message)) for message in messages]
        worker.ok("pop", v=[(queue, offset, value) for _, queue, offset, value in rows])
        async with trio.open_nursery() as nursery:
            for message, queue, offset, value in rows:
                # One that is kept hidden must not be forgotten by a client that stays: it would be hidden for hours.
                chance = 1.0 if renewed or self.stopping.is_set() else rng.random()
                nursery.start_soon(self._settle, proxy, message, queue, offset, value, chance)

    def _place(self, message: pb.Message) -> tuple[str, int, str]:
        """Queue, offset and value of a message. A redelivered one is in a retry topic, which only its handle names."""
        system_properties = message.system_properties
        handle = Handle.decode(system_properties.receipt_handle)
        topic = self.topic if handle.receipt.mark == NORMAL else pop_retry_topic(CONSUMER_GROUP, self.topic)
        value = value_of(message.body, message.user_properties, system_properties.tag)
        return f"{topic}/{handle.receipt.queue_id}", handle.receipt.offset, value

    async def _settle(
        self, proxy: GrpcConnection, message: pb.Message, queue: str, offset: int, value: str, chance: float
    ) -> None:
        """Acknowledge a message, give it back, or leave it to redelivery."""
        await trio.sleep(HANDLE_SECONDS_MAX * chance)
        if chance < FORGET_CHANCE:
            return
        name = "give-back" if chance < FORGET_CHANCE + GIVE_BACK_CHANCE else "ack"
        if name == "ack":
            self._settled_values.add(value)
        group, handle = pb.Resource(name=CONSUMER_GROUP), message.system_properties.receipt_handle
        worker = Worker(self.recorder)
        worker.invoke(name, k=queue, v=value, o=offset)
        try:
            if name == "ack":
                entry = pb.AckMessageEntry(message_id=message.system_properties.message_id, receipt_handle=handle)
                ack = pb.AckMessageRequest(group=group, topic=message.topic, entries=[entry])
                [data] = await proxy.call("AckMessage", ack.SerializeToString(), CALL_SECONDS)
                status = pb.AckMessageResponse.FromString(data).entries[0].status
            else:
                change = pb.ChangeInvisibleDurationRequest(group=group, topic=message.topic, receipt_handle=handle)
                change.invisible_duration.FromMilliseconds(GIVE_BACK_MS)
                [data] = await proxy.call("ChangeInvisibleDuration", change.SerializeToString(), CALL_SECONDS)
                status = pb.ChangeInvisibleDurationResponse.FromString(data).status
        except CallFailed as error:
            worker.info(name, str(error), k=queue, v=value)
        except trio.Cancelled:
            worker.info(name, "the run has ended", k=queue, v=value)
            raise
        else:
            if status.code == pb.OK:
                worker.ok(name, k=queue, v=value)
            else:
                worker.info(name, f"{status.code}: {status.message}", k=queue, v=value)
