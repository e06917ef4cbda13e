"""A broker stays registered at its name servers."""

from __future__ import annotations

from collections.abc import Collection

import structlog
import trio

from mq.broker.base.name_server_registration import Registrar, Registration
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig
from tests.support.waiting import until
from tests.unit.namesrv.serving import name_server


async def test_topic_recreated_during_its_deletion_is_registered() -> None:
    """Who deletes a topic asks brokers first and name servers then; a consumer may create it again in between."""
    body = RegisterBrokerBody(topics={"T1": TopicConfig("T1", 4, 4, 6)}, data_version=DataVersion(1, 2)).encode()
    asked: list[Collection[str] | None] = []

    def current(topics: Collection[str] | None) -> Registration:
        asked.append(topics)
        return Registration("c1", "b-a", 0, "10.0.0.1:10911", lambda: body, 1, topics is None)

    async with name_server() as server, trio.open_nursery() as nursery:
        registrar = Registrar(
            namesrv=[server.address],
            period_seconds=1000.0,
            current=current,
            confirm_seconds=0.01,
            log=structlog.get_logger("test"),
        )
        nursery.start_soon(registrar.run)
        peer = await server.connect()
        await until(peer.route)
        registrar.announce(["T1"])
        await until(lambda: len(asked) == 2)
        deleted, _ = await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1"})
        assert deleted.code == ResponseCode.SUCCESS
        await until(peer.route)
        nursery.cancel_scope.cancel()
    assert asked[:3] == [None, {"T1"}, None]
    assert len(asked) == 3, "once more, and then only each period"
