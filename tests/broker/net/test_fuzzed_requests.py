"""Whatever is asked is answered with a code, nothing is logged as a failure of ours, and others are served."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.wire.request import Request
from tests.support.odd_requests import all_requests, asked, code_of
from tests.support.running_broker import Client, properties, running, send_ext
from tests.unit.namesrv.serving import name_server

SLOW: Final = {RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS}
"""They ask clients, and wait for these."""
DOCUMENTED: Final = {int(code) for code in ResponseCode}


@pytest.mark.slow
@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_broker_answers_every_fuzzed_request(tmp_path: Path, serialization: int) -> None:
    rng = random.Random(serialization)
    with capture_logs() as logs:
        async with running(tmp_path) as broker:
            other = await broker.connect()
            await other.create_topic("T", 4)
            await other.send("T", i=properties(KEYS="G"))
            await other.heartbeat("c1", "G")
            for request in all_requests(serialization):
                if code_of(request) in SLOW:
                    continue
                client = await broker.connect()
                for opaque, what in await _post_all(client, request, rng, serialization):
                    answer = await client.answer(opaque)
                    assert answer.code in DOCUMENTED, what
                assert await other.alive()
                assert (await other.create_topic("T", 4)).code == ResponseCode.SUCCESS
                await client.stream.aclose()
            assert (await other.send("T")).code == ResponseCode.SUCCESS
            # The group may have been reset or moved behind a message, and the topic may have become unreadable.
            codes = (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.NO_PERMISSION)
            assert (await other.pull("T")).code in codes
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


async def _post_all(
    client: Client, request: type[Request], rng: random.Random, serialization: int
) -> list[tuple[int, object]]:
    posted: list[tuple[int, object]] = []
    for fields, body in asked(request, rng, serialization):
        opaque = await client.post(code_of(request), fields, body, serialization=serialization)
        posted.append((opaque, (request.__name__, {name: text[:100] for name, text in fields.items()}, body[:100])))
    return posted


@pytest.mark.slow
@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_name_server_answers_every_fuzzed_request(tmp_path: Path, serialization: int) -> None:
    rng = random.Random(serialization)
    with capture_logs() as logs:
        async with name_server(data_dir=tmp_path) as server:
            other = await server.connect()
            await other.register("T9")
            for request in all_requests(serialization):
                peer = await server.connect()
                for fields, body in asked(request, rng, serialization):
                    answer, _ = await peer.ask(code_of(request), fields, body, serialization=serialization)
                    assert answer.code in DOCUMENTED, (request.__name__, fields, body[:100])
                assert await other.route("T9") is not None, request.__name__
                await peer.stream.aclose()
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []


async def test_unknown_request_code_is_answered_with_an_error(client: Client) -> None:
    for code in (-32768, -1, 0, 999, 32767):
        assert (await client.request(code, send_ext())).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
