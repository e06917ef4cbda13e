"""Where the queues of a topic are, as name servers say."""

from __future__ import annotations

import structlog
import trio

from mq.broker.consume.routes import Queues, Routes
from mq.protocol.frames import split_frames
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.namesrv import GetRouteinfoByTopic, QueueData, Route
from mq.protocol.wire.encoding import encode_response
from mq.protocol.wire.queue_tables import QueueRef


class NameServer:
    """Knows every topic, with one queue; answers when it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = trio.Event(), trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        received = bytearray()
        async for chunk in stream:
            received += chunk
            frames, consumed = split_frames(memoryview(bytes(received)))
            del received[:consumed]
            for serialization, header, _ in frames:
                request = decode_header(serialization, header)
                assert isinstance(request, GetRouteinfoByTopic)
                self.asked.set()
                await self.may_answer.wait()
                queues = QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6, topic_sys_flag=0)
                body = Route(queue_datas=[queues], broker_datas=[]).encode()
                await stream.send_all(encode_response(request.opaque, 0, body=body))


async def test_concurrent_route_requests_each_get_their_own_topic() -> None:
    """Told that its topic is nowhere, a consumer would get no queues for 20 seconds."""
    server, found, all_found = NameServer(), dict[str, Queues | None](), trio.Event()
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    routes = Routes(
        namesrv=[listener.socket.getsockname()],
        own=lambda topic: None,
        wake=lambda: None,
        clock=trio.current_time,
        log=structlog.get_logger(),
    )

    def find(topic: str) -> None:
        def on_queues(queues: Queues | None) -> None:
            found[topic] = queues
            if len(found) == 2:
                all_found.set()

        routes.find(topic, on_queues)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        nursery.start_soon(routes.run)
        find("T")
        with trio.fail_after(30):
            await server.asked.wait()
            find("U")
            server.may_answer.set()
            await all_found.wait()
        nursery.cancel_scope.cancel()
    assert found == {topic: (QueueRef(topic, "b", 0),) for topic in ("T", "U")}
