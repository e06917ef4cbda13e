"""What clients read: responses of any code, and the requests that brokers send to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mq.protocol.codes import ResponseCode
from mq.protocol.errors import HeaderError
from mq.protocol.frames import BINARY, JSON, split_frames
from mq.protocol.incoming.client_decoding import decode_from_broker
from mq.protocol.incoming.headers import UnknownRequest
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES, decode_header
from mq.protocol.requests.clients import NotifyConsumerIdsChanged
from mq.protocol.requests.group_progress import ResetConsumerClientOffset
from mq.protocol.requests.lite import NotifyUnsubscribeLite
from mq.protocol.requests.relayed import ConsumeMessageDirectly, GetConsumerRunningInfo, GetConsumerStatusFromClient
from mq.protocol.requests.request_reply import PushReplyMessageToClient
from mq.protocol.requests.transactions import CheckTransactionState
from mq.protocol.wire.encoding import encode_request, encode_response
from mq.protocol.wire.request import Request

ROOT = Path(__file__).parents[3]
TO_CLIENTS: set[type[Request]] = {
    CheckTransactionState,
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    NotifyConsumerIdsChanged,
    NotifyUnsubscribeLite,
    PushReplyMessageToClient,
    ResetConsumerClientOffset,
}


def header_of(frame: bytes) -> tuple[int, memoryview]:
    [(serialization, header, _)], _ = split_frames(memoryview(frame))
    return serialization, header


def code_of(kind: type[Request]) -> int:
    return int(kind.__struct_config__.tag)  # type: ignore[arg-type]


BY_CODE: list[type[Request]] = sorted(TO_CLIENTS, key=code_of)


def fields_of(kind: type[Request]) -> dict[str, str]:
    """A value for each field of a request: a number that is a text and true or false as well, where one must be."""
    [ext] = [each.type for each in msgspec.structs.fields(kind) if each.name == "ext"] or [None]
    if ext is None:
        return {}
    described = msgspec.inspect.type_info(ext)
    assert isinstance(described, msgspec.inspect.StructType)
    return {each.encode_name: "true" if "BoolType" in repr(each.type) else "1" for each in described.fields}


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("kind", BY_CODE, ids=lambda kind: kind.__name__)
def test_clients_and_servers_read_a_request_alike(kind: type[Request], serialization: int) -> None:
    if serialization == BINARY and code_of(kind) >= 2**15:
        return
    found = header_of(encode_request(code_of(kind), 7, ext=fields_of(kind), serialization=serialization))
    request = decode_from_broker(*found)
    assert type(request) is kind
    assert request == decode_header(*found)


def test_clients_decode_requests_for_servers_as_unknown() -> None:
    for kind in REQUEST_CLASSES - TO_CLIENTS:
        ext = fields_of(kind)
        request = decode_from_broker(*header_of(encode_request(code_of(kind), 7, ext=ext)))
        assert isinstance(request, UnknownRequest)
        assert (request.code, request.opaque, request.ext) == (code_of(kind), 7, ext)


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("code", [0, *ResponseCode, 40, 12_345])
def test_clients_and_servers_read_a_response_alike(code: int, serialization: int) -> None:
    frame = encode_response(7, code, remark="no such topic", ext={"a": "1"}, serialization=serialization)
    assert decode_from_broker(*header_of(frame)) == decode_header(*header_of(frame))


def test_lenient_headers_of_other_brokers_are_decoded() -> None:
    lenient = b'{"code":"0017","flag":1,"opaque":"7","extFields":{"a":1,"b":true},"remark":null}'
    response = decode_from_broker(JSON, memoryview(lenient))
    assert response == decode_header(JSON, memoryview(lenient))
    assert response.code == 17
    number = b'{"code":40,"flag":2,"opaque":7,"extFields":{"consumerGroup":null}}'
    with pytest.raises(HeaderError, match="consumerGroup is missing"):
        decode_from_broker(JSON, memoryview(number))


CLIENT = """
import sys
from raftmq import LiteConsumer, PopConsumer, Producer, PullConsumer, PushConsumer
import mq.client.sync
print(*sorted(name for name in sys.modules if name.startswith(("mq.", "hash"))))
"""


def test_client_imports_only_its_own_requests() -> None:
    said = subprocess.run([sys.executable, "-c", CLIENT], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    imported = set(said.split())
    assert "mq.protocol.requests.namesrv" in imported
    unwanted = {"accounts", "bulk", "quotas", "registration", "replicas", "users"}
    assert not {f"mq.protocol.requests.{each}" for each in unwanted} & imported
    assert not {"mq.protocol.incoming.server_decoding", "mq.client.metrics.prometheus"} & imported


def test_client_without_an_account_loads_no_hash_functions() -> None:
    """OpenSSL's part of them took 0.6 MiB of each client's memory."""
    said = subprocess.run([sys.executable, "-c", CLIENT], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert "mq.credentials" in said.split()
    assert "hashlib" not in said.split()
