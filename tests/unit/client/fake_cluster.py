"""A name server and broker groups in this process, speaking the wire over loopback sockets.

A fake with behaviour: it stores records, holds long polls, knows group members and offsets, elects the leader it is
told to, and can be made to refuse, to stay silent or to hang up.

A broker group's store is shared by its replicas, as if replication took no time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import anyio
import anyio.abc

from mq.filter.sql import SqlFilter
from mq.protocol.messages.compression import inflate
from mq.protocol.wire.encoding import encode_request, encode_response
from tests.unit.client.fake_messages import StoredMessage, sent_messages
from tests.unit.client.fake_server import FakeConnection, FakeRequest, FakeServer

TBW102 = "TBW102"


@dataclass(frozen=True, slots=True)
class Misdeed:
    """What to do to the next send, instead of storing and answering it.

    `refuse`: answer `code`. `silence`: no answer. `hang_up`: close the connection. `store` says whether the message is
    stored before that.
    """

    kind: Literal["refuse", "silence", "hang_up"]
    store: bool = False
    code: int = 14
    remark: str = "not the leader"


def check_back(cluster: FakeCluster) -> bytes:
    """A request that asks a producer how the transaction of the first message of topic T has ended."""
    record = cluster.group.queues["T", 0][0].record("T", 0, 0)
    ext = {"tranStateTableOffset": "0", "commitLogOffset": "0", "msgId": "000", "transactionId": "000"}
    return encode_request(39, 0, ext=ext, body=record, oneway=True)


class FakeNameServer(FakeServer):
    """Answers routes from what the cluster is at this moment."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.mute = False
        """Whether to do nothing about any request, as if its packets vanished."""

    async def handle(self, connection: FakeConnection, request: FakeRequest) -> None:
        if self.mute:
            return
        code, body = 0, b""
        match request.code:
            case 105:
                route = self._cluster.route(request.ext["topic"])
                code, body = (0, _json(route)) if route is not None else (17, b"")
            case 106:
                body = _json(self._cluster.cluster_info())
            case 206:
                body = _json({"topicList": sorted({t for g in self._cluster.groups.values() for t in g.topics})})
            case 216:
                pass
            case _:
                code = 3
        await connection.send(encode_response(request.opaque, code, remark="no" if code else None, body=body))


@dataclass(slots=True)
class FakeGroup:
    """One broker group: replicas over one store."""

    name: str
    topics: dict[str, int] = field(default_factory=dict)
    queues: dict[tuple[str, int], list[StoredMessage]] = field(default_factory=lambda: defaultdict(list))
    min_offsets: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    replicas: list[FakeBroker] = field(default_factory=list)
    leader: FakeBroker | None = None
    grown: anyio.Event = field(default_factory=anyio.Event)
    places: dict[int, tuple[str, StoredMessage]] = field(default_factory=dict)
    """Topic and message by physical offset."""

    def addresses(self) -> dict[str, str]:
        """Broker id -> address: 0 is the leader, replica n is n + 1 while it follows; dead ones are gone."""
        return {
            str(0 if broker is self.leader else number + 1): broker.address
            for number, broker in enumerate(self.replicas)
            if broker.alive
        }

    def append(self, topic: str, queue_id: int, message: StoredMessage) -> int:
        queue = self.queues[topic, queue_id]
        queue.append(message)
        message.physical_offset = len(self.places) * 1000
        self.places[message.physical_offset] = topic, message
        grown, self.grown = self.grown, anyio.Event()
        grown.set()
        return len(queue) - 1

    def bodies(self, topic: str) -> list[bytes]:
        """All bodies stored in the topic, inflated, queue by queue."""
        return [
            inflate(message.sys_flag, message.body, 2**20)
            for (name, _), queue in sorted(self.queues.items())
            if name == topic
            for message in queue
        ]


class FakeBroker(FakeServer):
    """One replica of a group."""

    def __init__(self, cluster: FakeCluster, group: FakeGroup) -> None:
        super().__init__()
        self.alive = False
        self.cluster = cluster
        self.group = group
        self.misdeeds: list[Misdeed] = []
        self.members: dict[str, dict[str, FakeConnection]] = defaultdict(dict)
        self.fail_codes: dict[int, int] = {}
        """Request code -> response code with which all such requests are answered."""
        self.mute = False
        """Whether to do nothing about any request, as a process that is stopped."""
        self.ignored_topics: set[str] = set()
        """Sends to them are neither stored nor answered."""
        self.damages = ""
        """What is wrong in every answer with messages, as by a disk that gives out wrong bytes."""
        self.suggests = "0"
        """The broker id to which consumers are sent with their next pull."""
        self.untraced = False
        """Whether it is set so that nobody is to trace its messages."""
        self.forwards = False
        """Whether it lets the leader serve sends when it does not lead, and says so."""
        self.body_bytes_max = 2**31
        """A request with a larger message is refused as a whole."""

    @property
    def leads(self) -> bool:
        return self.group.leader is self

    async def handle(self, connection: FakeConnection, request: FakeRequest) -> None:
        if self.mute:
            return
        if request.code in self.fail_codes:
            await self._answer(connection, request, self.fail_codes[request.code], remark="as told")
            return
        handler = self._handlers().get(request.code)
        if handler is None:
            await self._answer(connection, request, 3)
        else:
            await handler(connection, request)

    def _handlers(self) -> dict[int, Callable[[FakeConnection, FakeRequest], Any]]:
        return {
            310: self._send,
            320: self._send,
            11: self._pull,
            14: self._query_offset,
            15: self._update_offset,
            17: self._create_topic,
            28: self._runtime,
            29: self._search_offset,
            30: self._max_offset,
            31: self._min_offset,
            34: self._heartbeat,
            35: self._unregister,
            36: self._take_back,
            38: self._consumer_list,
            41: self._lock,
            42: self._unlock,
            215: self._delete_topic,
            200050: self._pop,
        }

    async def _answer(
        self,
        connection: FakeConnection,
        request: FakeRequest,
        code: int = 0,
        *,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None:
        if not request.oneway:
            await connection.send(encode_response(request.opaque, code, ext=ext, body=body, remark=remark))

    # Sends and pulls.

    async def _send(self, connection: FakeConnection, request: FakeRequest) -> None:
        ext = request.ext
        topic, queue_id = ext["b"], int(ext["e"])
        if topic in self.ignored_topics:
            return
        misdeed = self.misdeeds.pop(0) if self.misdeeds else None
        forwarded = self.forwards and not self.leads and self.group.leader is not None
        if misdeed is None and not self.leads and not forwarded:
            misdeed = Misdeed("refuse")
        if misdeed is None and topic not in self.group.topics:
            if ext["c"] != TBW102 or TBW102 not in self.group.topics:
                misdeed = Misdeed("refuse", code=17, remark="no such topic")
            else:
                self.group.topics[topic] = min(int(ext["d"]), self.group.topics[TBW102])
        if misdeed is None and queue_id >= self.group.topics[topic]:
            misdeed = Misdeed("refuse", code=29, remark=f"queue id {queue_id} is illegal")
        messages = sent_messages(request.code, request.ext, request.body)
        if misdeed is None and any(len(message.body) > self.body_bytes_max for message in messages):
            misdeed = Misdeed("refuse", code=13, remark="a message is too large")
        offsets = list[int]()
        if misdeed is None or misdeed.store:
            offsets = [self.group.append(topic, queue_id, message) for message in messages]
        if misdeed is None:
            message_ids = [f"{self.group.replicas.index(self):016X}{offset:016X}" for offset in offsets]
            result = {"msgId": ",".join(message_ids), "queueId": str(queue_id), "queueOffset": str(offsets[0])}
            if self.untraced:
                result["TRACE_ON"] = "false"
            if forwarded and self.group.leader is not None:
                result["forwardedTo"] = self.group.leader.address
            await self._answer(connection, request, ext=result)
        elif misdeed.kind == "refuse":
            await self._answer(connection, request, misdeed.code, remark=misdeed.remark)
        elif misdeed.kind == "hang_up":
            await connection.hang_up()

    async def _pull(self, connection: FakeConnection, request: FakeRequest) -> None:
        ext = request.ext
        if int(ext["sysFlag"]) & 1 and self.leads:
            key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
            self.group.offsets[key] = int(ext["commitOffset"])
        connection.tasks.start_soon(self._pull_or_hold, connection, request)

    async def _pull_or_hold(self, connection: FakeConnection, request: FakeRequest) -> None:
        ext = request.ext
        topic, queue_id, offset = ext["topic"], int(ext["queueId"]), int(ext["queueOffset"])
        with anyio.move_on_after(int(ext["suspendTimeoutMillis"]) / 1000):
            while len(self.group.queues[topic, queue_id]) == offset:
                await self.group.grown.wait()
        queue = self.group.queues[topic, queue_id]
        first = self.group.min_offsets[topic, queue_id]
        batch: list[bytes] = []
        if first <= offset <= len(queue):
            end = min(offset + int(ext["maxMsgNums"]), len(queue))
            wanted = {tag.strip() for tag in ext["subscription"].split("||")}
            chosen = SqlFilter(ext["subscription"]) if ext["expressionType"] == "SQL92" else None
            for position in range(offset, end):
                # Brokers see hash codes only, and two tags may have the same one.
                if (
                    chosen.matches_text(queue[position].properties)
                    if chosen
                    else "*" in wanted or queue[position].tags in wanted | self.cluster.colliding_tags
                ):
                    batch.append(queue[position].record(*self._place(topic, queue_id, position)))
            code = 0 if batch else (20 if end > offset else 19)
            next_offset = end
        else:
            code, next_offset = 21, (first if offset < first else len(queue))
        fields = {
            "suggestWhichBrokerId": self.suggests,
            "nextBeginOffset": str(next_offset),
            "minOffset": str(first),
            "maxOffset": str(len(queue)),
        }
        body = b"".join(batch)
        if self.damages == "body" and batch:
            body = body.replace(queue[offset].body, bytes(len(queue[offset].body)), 1)
        elif self.damages == "size" and batch:
            body = b"\xff" + body[1:]
        elif self.damages == "magic" and batch:
            body = body[:4] + b"\xff" + body[5:]
        elif self.damages in fields:
            fields[self.damages] = "rubbish"
        await self._answer(connection, request, code, ext=fields, body=body)

    async def _pop(self, connection: FakeConnection, request: FakeRequest) -> None:
        connection.tasks.start_soon(self._hold_pop, connection, request)

    async def _hold_pop(self, connection: FakeConnection, request: FakeRequest) -> None:
        """There is never a message to pop."""
        await anyio.sleep(int(request.ext["pollTime"]) / 1000)  # as long as a broker holds it
        await self._answer(connection, request, 210)

    def _place(self, topic: str, queue_id: int, offset: int) -> tuple[str, int, int]:
        """What a message says of itself."""
        moved = {"topic": ("X", queue_id, offset), "queue": (topic, queue_id + 4, offset)}
        moved |= {"offset": (topic, queue_id, offset ^ 1 << 40), "order": (topic, queue_id, offset ^ 1)}
        return moved.get(self.damages, (topic, queue_id, offset))

    async def _take_back(self, connection: FakeConnection, request: FakeRequest) -> None:
        """Deliver a message again, at once."""
        ext = request.ext
        if not self.leads or int(ext["offset"]) not in self.group.places:
            await self._answer(connection, request, 1)
            return
        assert (-1 <= int(ext["delayLevel"]) <= 18, ext["unitMode"]) == (True, "false")
        topic, message = self.group.places[int(ext["offset"])]
        again = f"%RETRY%{ext['group']}"
        limit = int(ext.get("maxReconsumeTimes", "16"))
        dead = ext["delayLevel"] == "-1" or message.reconsume_times >= limit
        where = f"%DLQ%{ext['group']}" if dead else again
        properties = message.properties + ("" if topic == again else f"RETRY_TOPIC\x01{topic}\x02")
        if "raftmqFailure" in ext:
            properties += f"RAFTMQ_FAILURE\x01{ext['raftmqFailure']}\x02"
        copy = replace(message, properties=properties, reconsume_times=message.reconsume_times + 1)
        self.group.topics.setdefault(where, 1)
        self.group.append(where, 0, copy)
        await self._answer(connection, request)

    # Offsets.

    async def _query_offset(self, connection: FakeConnection, request: FakeRequest) -> None:
        key = (request.ext["consumerGroup"], request.ext["topic"], int(request.ext["queueId"]))
        offset = self.group.offsets.get(key)
        if offset is None:
            await self._answer(connection, request, 22, remark="no offset stored")
        else:
            await self._answer(connection, request, ext={"offset": str(offset)})

    async def _update_offset(self, connection: FakeConnection, request: FakeRequest) -> None:
        if self.leads:
            key = (request.ext["consumerGroup"], request.ext["topic"], int(request.ext["queueId"]))
            self.group.offsets[key] = int(request.ext["commitOffset"])
        await self._answer(connection, request)

    async def _max_offset(self, connection: FakeConnection, request: FakeRequest) -> None:
        queue = self.group.queues[request.ext["topic"], int(request.ext["queueId"])]
        await self._answer(connection, request, ext={"offset": str(len(queue))})

    async def _min_offset(self, connection: FakeConnection, request: FakeRequest) -> None:
        offset = self.group.min_offsets[request.ext["topic"], int(request.ext["queueId"])]
        await self._answer(connection, request, ext={"offset": str(offset)})

    async def _search_offset(self, connection: FakeConnection, request: FakeRequest) -> None:
        queue = self.group.queues[request.ext["topic"], int(request.ext["queueId"])]
        wanted = int(request.ext["timestamp"])
        offset = sum(message.born_timestamp_ms + 1 < wanted for message in queue)
        await self._answer(connection, request, ext={"offset": str(offset)})

    async def _lock(self, connection: FakeConnection, request: FakeRequest) -> None:
        """Whoever asks gets it."""
        await self._answer(connection, request, body=_json({"lockOKMQSet": json.loads(request.body)["mqSet"]}))

    async def _unlock(self, connection: FakeConnection, request: FakeRequest) -> None:
        await self._answer(connection, request)

    # Topics, members.

    async def _create_topic(self, connection: FakeConnection, request: FakeRequest) -> None:
        assert request.ext["readQueueNums"] == request.ext["writeQueueNums"], "the fake has one number of queues"
        self.group.topics[request.ext["topic"]] = int(request.ext["readQueueNums"])
        await self._answer(connection, request)

    async def _delete_topic(self, connection: FakeConnection, request: FakeRequest) -> None:
        self.group.topics.pop(request.ext["topic"], None)
        await self._answer(connection, request)

    async def _runtime(self, connection: FakeConnection, request: FakeRequest) -> None:
        table = {"brokerVersionDesc": "V4_9_8", "putTps": "1 2 3"}
        await self._answer(connection, request, body=_json({"table": table}))

    async def _heartbeat(self, connection: FakeConnection, request: FakeRequest) -> None:
        beat = json.loads(request.body)
        await self._answer(connection, request)
        for consumer in beat["consumerDataSet"]:
            assert consumer["messageModel"] in ("CLUSTERING", "BROADCASTING")
            assert consumer["consumeType"] == "CONSUME_PASSIVELY"
            members = self.members[consumer["groupName"]]
            is_new = beat["clientID"] not in members
            members[beat["clientID"]] = connection
            if is_new:
                await self._notify(consumer["groupName"])

    async def _unregister(self, connection: FakeConnection, request: FakeRequest) -> None:
        group = request.ext.get("consumerGroup")
        await self._answer(connection, request)
        if group is not None and self.members[group].pop(request.ext["clientID"], None) is not None:
            await self._notify(group)

    async def _notify(self, group: str) -> None:
        for member in list(self.members[group].values()):
            await member.send(encode_request(40, 7, ext={"consumerGroup": group}, oneway=True))

    def connection_ended(self, connection: FakeConnection) -> None:
        for members in self.members.values():
            for client_id in [each for each, theirs in members.items() if theirs is connection]:
                del members[client_id]

    async def _consumer_list(self, connection: FakeConnection, request: FakeRequest) -> None:
        members = sorted(self.members[request.ext["consumerGroup"]])
        if members:
            await self._answer(connection, request, body=_json({"consumerIdList": members}))
        else:
            await self._answer(connection, request, 1, remark="no consumer for this group")


class FakeCluster:
    """The whole: `async with FakeCluster.start() as cluster`."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self.groups: dict[str, FakeGroup] = {}
        self.name_servers: list[FakeNameServer] = []
        self.colliding_tags: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def start(
        cls, *, groups: int = 1, replicas: int = 1, name_servers: int = 1, topics: dict[str, int] | None = None
    ) -> AsyncGenerator[Self]:
        """Broker groups `b-0`, `b-1`..., each led by its first replica; every group has all `topics`."""
        async with anyio.create_task_group() as tasks:
            cluster = cls(tasks)
            for _ in range(name_servers):
                server = FakeNameServer(cluster)
                await server.start(tasks)
                cluster.name_servers.append(server)
            for number in range(groups):
                group = FakeGroup(f"b-{number}", topics=dict(topics or {}))
                cluster.groups[group.name] = group
                for _ in range(replicas):
                    broker = FakeBroker(cluster, group)
                    group.replicas.append(broker)
                    await cluster.start_broker(broker)
                group.leader = group.replicas[0]
            try:
                yield cluster
            finally:
                tasks.cancel_scope.cancel()

    @property
    def namesrv(self) -> str:
        return ";".join(server.address for server in self.name_servers)

    @property
    def group(self) -> FakeGroup:
        """The first broker group."""
        return self.groups["b-0"]

    @property
    def leader(self) -> FakeBroker:
        """The leader of the first broker group."""
        assert self.group.leader is not None, "the group has no leader"
        return self.group.leader

    async def start_broker(self, broker: FakeBroker) -> None:
        await broker.start(self._tasks)
        broker.alive = True

    async def kill(self, broker: FakeBroker) -> None:
        """The process is gone; the name server knows at once, since its connection closed. Nobody leads yet."""
        broker.alive = False
        if broker.leads:
            broker.group.leader = None
        await broker.stop()

    def route(self, topic: str) -> dict[str, Any] | None:
        groups = [group for group in self.groups.values() if topic in group.topics and group.addresses()]
        if not groups:
            return None
        return {
            "brokerDatas": [self._broker_data(group) for group in groups],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": group.name,
                    "perm": 6,
                    "readQueueNums": group.topics[topic],
                    "topicSysFlag": 0,
                    "writeQueueNums": group.topics[topic],
                }
                for group in groups
            ],
        }

    def cluster_info(self) -> dict[str, Any]:
        return {
            "brokerAddrTable": {group.name: self._broker_data(group) for group in self.groups.values()},
            "clusterAddrTable": {"c": list(self.groups)},
        }

    def _broker_data(self, group: FakeGroup) -> dict[str, Any]:
        return {
            "brokerAddrs": group.addresses(),
            "brokerName": group.name,
            "cluster": "c",
            "enableActingMaster": False,
        }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
