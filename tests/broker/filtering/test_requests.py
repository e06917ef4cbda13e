"""What filter servers ask of a broker, over sockets: registration, programs, and whether somebody may do something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from mq.broker.filtering.filter_servers import FILTER_SERVERS_MAX, SILENT_SECONDS, FilterServers
from mq.broker.state.format_level import LEVEL_OF_FILTERS
from mq.client import Credentials, Message, Producer, PushConsumer, WasmFilter
from mq.client.net.client_core import RemotingSettings
from mq.filter.programs import CLASS_FILTER, name_of
from mq.protocol.access.signing import sign_fields
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.pull import PullExt
from mq.protocol.wire.encoding import encode_request
from mq.testing import Kit, open_kit
from tests.support.filter_servers import begins_with, filter_server
from tests.support.guarded import ADMIN, USER, connect, guarded
from tests.support.running_broker import Client, broker_client, pull_ext
from tests.support.waiting import until

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


async def test_program_is_stored_under_its_name(client: Client) -> None:
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
            fields = ext if keys is None else sign_fields(*keys, ext, b"")
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


FILE = """
accounts:
- {accessKey: administrator, secretKey: admin-SECRET, admin: true}
- {accessKey: uploads, secretKey: user-SECRET-1, topicPerms: [Orders=SUB], groupPerms: [billing=SUB|FILTER]}
- {accessKey: consumes, secretKey: user-SECRET-2, topicPerms: [Orders=SUB], groupPerms: [billing=SUB]}
"""


def remoting(access_key: str, secret_key: str) -> RemotingSettings:
    return RemotingSettings(credentials=Credentials(access_key, secret_key), tls=None)


ADMINISTRATOR = remoting("administrator", "admin-SECRET")
UPLOADS = remoting("uploads", "user-SECRET-1")
CONSUMES = remoting("consumes", "user-SECRET-2")
STRANGER = remoting("uploads", "another-SECRET")


def consumer_of(kit: Kit, settings: RemotingSettings) -> PushConsumer:
    consumer = PushConsumer(kit.namesrv, group="billing", consume_from="first", remoting=settings)
    consumer.subscribe("Orders", filter=WasmFilter(begins_with("a")))
    return consumer


async def trouble(kit: Kit, settings: RemotingSettings, text: str) -> None:
    """The consumer gets nothing, for this reason."""
    async with consumer_of(kit, settings) as consumer:
        await until(lambda: text in str(consumer.health()), seconds=60)


async def test_checked_permission_belongs_to_its_account(tmp_path: Path) -> None:
    """Two accounts share a connection: that one of them may pull says nothing of the other."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    name = name_of("wasm", begins_with("a"))
    fields = PullExt(
        consumer_group="billing",
        topic="Orders",
        queue_id=0,
        queue_offset=QueueOffset(0),
        max_messages=1,
        sys_flag=4 | CLASS_FILTER,
        commit_offset=QueueOffset(0),
        suspend_timeout_ms=0,
        sub_version=0,
        subscription=name.text,
    ).fields()
    async with open_kit(acl_file=path) as kit:
        async with Producer(kit.namesrv, remoting=ADMINISTRATOR) as producer:
            await producer.send(Message("Orders", b"apple"))
        async with filter_server(kit, "Orders", remoting=ADMINISTRATOR) as address:
            async with consumer_of(kit, UPLOADS) as consumer:
                await anext(aiter(consumer))
            host, _, port = address.rpartition(":")
            codes: list[int] = []
            stream = await trio.open_tcp_stream(host, int(port))
            for key, secret in (("uploads", "user-SECRET-1"), ("nobody", "guessed"), ("consumes", "guessed")):
                ext = sign_fields(key, secret, fields, b"")
                await stream.send_all(encode_request(RequestCode.PULL_MESSAGE, len(codes) + 1, ext=ext))
                frame = await stream.receive_some(65536)
                header = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
                codes.append(header["code"])
            await stream.aclose()
    assert codes[1:] == [ResponseCode.NO_PERMISSION] * 2
    assert codes[0] != ResponseCode.NO_PERMISSION


async def test_uploading_a_filter_needs_its_own_permission(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    async with open_kit(acl_file=path) as kit:
        async with Producer(kit.namesrv, remoting=ADMINISTRATOR) as producer:
            for body in (b"apple", b"bread"):
                await producer.send(Message("Orders", body))
        async with filter_server(kit, "Orders", remoting=ADMINISTRATOR):
            await trouble(kit, CONSUMES, "no permission FILTER for consumer group billing")
            await trouble(kit, STRANGER, "signature does not match")
            for settings in (UPLOADS, CONSUMES):  # once it is there, the others may use it
                async with consumer_of(kit, settings) as consumer:
                    with trio.fail_after(60):
                        assert (await anext(aiter(consumer))).body == b"apple"
