"""What filter servers ask of a broker, over sockets: registration, programs, and whether somebody may do something."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mq.broker.filtering.filter_servers import FILTER_SERVERS_MAX, SILENT_SECONDS, FilterServers
from mq.broker.state.format_level import LEVEL_OF_FILTERS
from mq.filter.programs import name_of
from mq.protocol.access.signing import signed
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.wire.encoding import encode_request
from tests.support.guarded import ADMIN, USER, connect, guarded
from tests.support.running_broker import Client, broker_client, pull_ext

OK = ResponseCode.SUCCESS
NAME = name_of("wasm", b"abc").text
EXT = {"consumerGroup": "g", "topic": "T", "program": NAME}


async def register(client: Client, address: str) -> int:
    return (await client.request(RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": address})).code


async def test_route_names_filter_servers_while_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services: list[FilterServers] = []
    made = FilterServers.__init__

    def note(self: FilterServers, *given: object) -> None:
        made(self, *given)  # type: ignore[arg-type]
        services.append(self)

    monkeypatch.setattr(FilterServers, "__init__", note)
    async with broker_client(tmp_path) as client:
        assert await register(client, "10.0.0.1:10921") == OK
        assert await register(client, "10.0.0.1:10921") == OK
        assert await register(client, "nonsense") == ResponseCode.INVALID_PARAMETER
        (service,) = services
        assert service.addresses() == ["10.0.0.1:10921"]
        for port in range(1, FILTER_SERVERS_MAX):
            assert await register(client, f"10.0.0.2:{port}") == OK
        assert await register(client, "10.0.0.3:1") == ResponseCode.SYSTEM_ERROR
        now = service._clock() + SILENT_SECONDS + 1
        monkeypatch.setattr(service, "_clock", lambda: now)
        with capture_logs() as logs:
            service.expire()
        assert service.addresses() == []
        assert len([each for each in logs if each["event"] == "filter_server_gone"]) == FILTER_SERVERS_MAX


async def test_program_is_kept_by_its_name(client: Client) -> None:
    await client.wait_for(lambda info: int(info["raftmq.formatLevel"]) >= LEVEL_OF_FILTERS)
    put, get = RequestCode.PUT_FILTER, RequestCode.GET_FILTER
    assert (await client.request(put, EXT, b"abc")).code == ResponseCode.TOPIC_NOT_EXIST
    await client.create_topic("T")
    assert (await client.request(get, EXT)).code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert (await client.request(put, EXT, b"abd")).code == ResponseCode.INVALID_PARAMETER
    assert (await client.request(put, EXT, b"abc")).code == OK
    assert (await client.request(put, EXT, b"abc")).code == OK
    answer = await client.request(get, EXT)
    assert (answer.code, answer.body, answer.ext["version"]) == (OK, b"abc", "1")
    other = EXT | {"program": name_of("wasm", b"abc", "skip").text}
    assert (await client.request(get, other)).code == ResponseCode.FILTER_DATA_NOT_LATEST
    assert (await client.request(put, other, b"abc")).code == OK
    assert (await client.request(get, other)).ext["version"] == "2"


async def test_programs_are_refused_below_format_level_7(tmp_path: Path) -> None:
    async with broker_client(tmp_path, queues=1, format_level_max=6) as client:
        answer = await client.request(RequestCode.PUT_FILTER, EXT, b"abc")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "filter programs need 7" in str(answer.remark)


async def test_broker_judges_requests_of_consumers(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, admin):
        user = await connect(broker, USER)

        async def judged(ext: dict[str, str], keys: tuple[str, str] | None = USER) -> tuple[int, str | None]:
            fields = ext if keys is None else signed(*keys, ext, b"")
            frame = encode_request(RequestCode.PULL_MESSAGE, 1, ext=fields)
            answer = await admin.request(RequestCode.JUDGE_REQUEST, {"address": "10.0.0.9"}, frame)
            return answer.code, answer.remark

        pull = {name: str(value) for name, value in pull_ext("T").items()}
        code, remark = await judged(pull, keys=None)
        assert code == ResponseCode.NO_PERMISSION
        assert "must be signed" in str(remark)
        code, remark = await judged(pull)
        assert code == ResponseCode.NO_PERMISSION
        assert "unknown access key" in str(remark)
        assert await judged(pull, keys=ADMIN) == (OK, None)
        code, remark = await judged(pull, keys=(ADMIN[0], "another-secret"))
        assert code == ResponseCode.NO_PERMISSION
        assert "signature does not match" in str(remark)
        assert (await user.request(RequestCode.JUDGE_REQUEST, {"address": "10.0.0.9"}, b"")).code == (
            ResponseCode.NO_PERMISSION
        ), "only administrators ask"
        answer = await admin.request(RequestCode.JUDGE_REQUEST, {"address": "10.0.0.9"}, b"nonsense")
        assert answer.code == ResponseCode.INVALID_PARAMETER
