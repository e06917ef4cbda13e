"""A name server with accounts: who may register brokers and change routes, and who may only ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from mq.accounts import parse_accounts
from mq.broker.base.name_server_registration import Registrar, Registration
from mq.credentials import Credentials
from mq.namesrv.access import OF_ADMINISTRATORS, OF_BROKERS, denial
from mq.namesrv.handlers import Handlers
from mq.namesrv.kv_config import KvConfig
from mq.namesrv.route_table import RouteTable, TableLimits
from mq.namesrv.running_config import RunningConfig
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.access.plain_acl import AclFileInvalid
from mq.protocol.access.signing import SIGNED_CODE, sign_fields
from mq.protocol.codes import RequestCode as Code
from mq.protocol.codes import ResponseCode
from mq.protocol.frames import BINARY, JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig
from mq.protocol.wire.encoding import encode_request
from mq.protocol.wire.request import Request
from tests.support.waiting import until
from tests.unit.namesrv.serving import broker_fields, name_server

BROKER, ADMIN, USER = (Credentials(f"{name}-key", f"{name}-secret") for name in ("broker", "admin", "user"))
FILE = f"""
globalWhiteRemoteAddresses: [10.1.1.*]
accounts:
- {{accessKey: {BROKER.access_key}, secretKey: {BROKER.secret_key}, broker: true}}
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- {{accessKey: {USER.access_key}, secretKey: {USER.secret_key}, defaultTopicPerm: PUB|SUB}}
"""
ACCOUNTS = parse_accounts(FILE)
REGISTRATION = {name: str(value) for name, value in broker_fields().items()} | {"haServerAddr": "10.0.0.1:10912"}
BODY = RegisterBrokerBody(topics={"T1": TopicConfig("T1", 4, 4, 6)}, data_version=DataVersion(1, 2)).encode()
ATTACKER = "192.0.2.7"
CHANGES: dict[Code, tuple[Mapping[str, str], bytes]] = {
    Code.REGISTER_BROKER: (REGISTRATION, BODY),
    Code.UNREGISTER_BROKER: (REGISTRATION, b""),
    Code.BROKER_HEARTBEAT: (REGISTRATION, b""),
    Code.QUERY_DATA_VERSION: (REGISTRATION, DataVersion(1, 2).encode()),
    Code.DELETE_TOPIC_IN_NAMESRV: ({"topic": "T1"}, b""),
    Code.REGISTER_TOPIC_IN_NAMESRV: ({"topic": "T1"}, b""),
    Code.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "b-a"}, b""),
    Code.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "b-a"}, b""),
    Code.PUT_KV_CONFIG: ({"namespace": "N", "key": "K", "value": "V"}, b""),
    Code.DELETE_KV_CONFIG: ({"namespace": "N", "key": "K"}, b""),
    Code.UPDATE_NAMESRV_CONFIG: ({}, b"orderMessageEnable=true"),
}
QUERIES: dict[Code, Mapping[str, str]] = {
    Code.GET_ROUTEINFO_BY_TOPIC: {"topic": "T1"},
    Code.GET_BROKER_CLUSTER_INFO: {},
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {},
    Code.GET_KV_CONFIG: {"namespace": "N", "key": "K"},
    Code.GET_NAMESRV_CONFIG: {},
}


def refusal(
    code: int, fields: Mapping[str, str], body: bytes = b"", *, address: str = ATTACKER, serialization: int = JSON
) -> str | None:
    frame = encode_request(code, 1, ext=dict(fields), body=body, serialization=serialization)
    ((_, header, data),) = split_frames(memoryview(frame))[0]
    request = decode_header(serialization, header)
    assert not isinstance(request, Response)
    return denial(ACCOUNTS, request, serialization, header, data, address)


@pytest.mark.parametrize("serialization", [JSON, BINARY])
@pytest.mark.parametrize("code", CHANGES, ids=lambda code: code.name)
def test_every_change_needs_the_signature_of_its_role(code: Code, serialization: int) -> None:
    fields, body = CHANGES[code]
    unsigned = refusal(code, fields, body, serialization=serialization)
    assert unsigned is not None
    assert "must be signed" in unsigned
    assert refusal(code, ADMIN.sign(code, fields, body), body, serialization=serialization) is None
    assert refusal(code, fields, body, address="10.1.1.5") is None, "the file believes this address"
    of_user = refusal(code, USER.sign(code, fields, body), body)
    assert of_user is not None
    assert "user-key" in of_user
    stranger = refusal(code, Credentials("admin-key", "guessed-secret").sign(code, fields, body), body)
    assert stranger == "the signature does not match the access key admin-key: check the secret key"
    assert refusal(code, Credentials("nobody-here", "guessed-secret").sign(code, fields, body), body) == (
        "unknown access key nobody-here"
    )


def test_account_of_brokers_registers_and_does_nothing_else() -> None:
    allowed = {
        code for code, (fields, body) in CHANGES.items() if not refusal(code, BROKER.sign(code, fields, body), body)
    }
    assert allowed == {
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.BROKER_HEARTBEAT,
        Code.QUERY_DATA_VERSION,
    }


def test_queries_need_no_account() -> None:
    """Clients look up routes before they know whether a broker wants a signature."""
    assert [code.name for code, fields in QUERIES.items() if refusal(code, fields)] == []


def test_name_server_requests_are_queries_or_changes() -> None:
    """A request that is added later has to be put into one of the tables here."""
    limits = TableLimits(broker_groups_max=1, brokers_max=1, routes_max=1, topics_max=1)
    handlers = Handlers(
        RouteTable(expiry_seconds=1, limits=limits),
        KvConfig(entries_max=1, bytes_max=1),
        RunningConfig(NamesrvSettings()),
        clock=lambda: 0.0,
        log=structlog.get_logger("test"),
    )
    served: set[type[Request]] = {*handlers.request_types}
    assert served >= OF_BROKERS | OF_ADMINISTRATORS
    queries = {kind.__name__ for kind in served - OF_BROKERS - OF_ADMINISTRATORS}
    assert all(name.startswith("Get") for name in queries), queries


def test_recorded_request_is_refused_under_another_code_or_broker_address() -> None:
    recorded = BROKER.sign(Code.UNREGISTER_BROKER, REGISTRATION, b"")
    other_code = refusal(Code.REGISTER_BROKER, recorded)
    assert other_code == "the request was signed for code 104, not 103"
    changed = BROKER.sign(Code.REGISTER_BROKER, REGISTRATION, BODY) | {"brokerAddr": "192.0.2.7:10911"}
    assert "does not match" in (refusal(Code.REGISTER_BROKER, changed, BODY) or "")
    # A stock broker signs neither code nor lengths; it is accepted, but not with fields that no broker sends.
    stock = sign_fields(BROKER.access_key, BROKER.secret_key, REGISTRATION, BODY)
    assert refusal(Code.REGISTER_BROKER, stock, BODY) is None
    more = sign_fields(BROKER.access_key, BROKER.secret_key, REGISTRATION | {"aaa": "x"}, BODY)
    assert "the field 'aaa'" in (refusal(Code.REGISTER_BROKER, more, BODY) or "")
    assert SIGNED_CODE not in stock


@pytest.mark.parametrize("more", ["admin: true", "defaultTopicPerm: PUB", "proxy: true"])
def test_account_of_brokers_has_no_other_permissions(more: str) -> None:
    with pytest.raises(AclFileInvalid, match=r"permissions of its own"):
        parse_accounts(f"accounts: [{{accessKey: broker-key, secretKey: broker-secret, broker: true, {more}}}]")


async def test_name_server_refuses_brokers_without_keys(tmp_path: Path) -> None:
    path = tmp_path / "acl.yml"
    path.write_text(FILE)
    with capture_logs() as logs:
        async with name_server(acl_file=path) as server:
            attacker = await server.connect()
            response, _ = await attacker.register()
            assert response.code == ResponseCode.NO_PERMISSION
            assert "namesrv_credentials" in (response.remark or "")
            assert await attacker.route() is None
            broker = await server.connect()
            fields = BROKER.sign(Code.REGISTER_BROKER, REGISTRATION, BODY)
            assert (await broker.ask(Code.REGISTER_BROKER, fields, BODY))[0].code == ResponseCode.SUCCESS
            # Neither a stranger who asks to remove it, nor one whose connection ends, changes the route.
            response, _ = await attacker.ask(Code.UNREGISTER_BROKER, broker_fields())
            assert response.code == ResponseCode.NO_PERMISSION
            await attacker.stream.aclose()
            reader = await server.connect()
            route = await reader.route()
            assert route is not None
            assert [each.broker_addrs for each in route.broker_datas] == [{0: "10.0.0.1:10911"}]
    assert [(each["event"], each["code"]) for each in logs if each["event"] == "request_denied"] == [
        ("request_denied", Code.REGISTER_BROKER),
        ("request_denied", Code.UNREGISTER_BROKER),
    ]


async def test_denied_requests_do_not_fill_the_log(tmp_path: Path) -> None:
    """A broker with wrong keys tries again each second, and an attacker sends as many as a connection takes."""
    path = tmp_path / "acl.yml"
    path.write_text(FILE)
    with capture_logs() as logs:
        async with name_server(acl_file=path) as server:
            attacker = await server.connect()
            for _ in range(50):
                response, _ = await attacker.register()
                assert response.code == ResponseCode.NO_PERMISSION
            await attacker.ask(Code.UNREGISTER_BROKER, broker_fields())
    denials = [(each["code"], each["denied"]) for each in logs if each["event"] == "request_denied"]
    assert denials == [(Code.REGISTER_BROKER, 1), (Code.UNREGISTER_BROKER, 51)]


async def test_broker_registers_with_the_current_keys_of_its_file(tmp_path: Path) -> None:
    """It logs the refusal once, and registers by itself once the keys are right."""
    path, keys = tmp_path / "acl.yml", tmp_path / "keys.toml"
    path.write_text(FILE)

    def write(credentials: Credentials, secret: str) -> None:
        keys.write_text(f'access_key = "{credentials.access_key}"\nsecret_key = "{secret}"\n')
        os.chmod(keys, 0o600)

    write(BROKER, "the-old-secret")
    registration = Registration("c1", "b-a", 0, "10.0.0.1:10911", lambda: BODY, 1, True)
    with capture_logs() as logs:
        async with name_server(acl_file=path) as server, trio.open_nursery() as nursery:
            registrar = Registrar(
                namesrv=[server.address],
                period_seconds=30.0,
                current=lambda topics: registration,
                credentials=lambda: Credentials.from_file(keys),
                log=structlog.get_logger("broker"),
            )
            nursery.start_soon(registrar.run)
            await until(lambda: [each for each in logs if each["event"] == "not_registered"])
            reader = await server.connect()
            assert await reader.route() is None
            write(BROKER, BROKER.secret_key)
            await until(reader.route)
            nursery.cancel_scope.cancel()
    (refused,) = (each["error"] for each in logs if each["event"] == "not_registered")
    assert "the signature does not match the access key broker-key" in refused
