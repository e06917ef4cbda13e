"""Request 9002 at the leader, over real sockets: what other replicas hand to it is done as if the client had come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.broker.replication.peer_authentication import PeerCall
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.requests.raft_group import GroupAnswer, GroupCommand
from mq.protocol.wire.encoding import encode_request
from raftlog.net.secret_file import new_secret, read_secrets, write_secrets
from tests.support.half_messages import end_ext
from tests.support.replica_client import add_learner, as_response, authenticate, connect_replica, fields_of
from tests.support.running_broker import Answer, Client, RunningBroker, properties, pull_ext, running, send_ext
from tests.support.waiting import until

FORWARD = RequestCode.FORWARD
BORN = bytes((10, 1, 2, 3, 0, 0, 0x12, 0x34))


def inner_frame(
    code: int, ext: dict[str, Any], body: bytes = b"", *, oneway: bool = False, serialization: int = JSON
) -> bytes:
    fields = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in ext.items()}
    return encode_request(code, 77, ext=fields, body=body, oneway=oneway, serialization=serialization)


async def forward(
    broker: RunningBroker, client: Client, frame: bytes, *, serialization: int = JSON, **given: Any
) -> Answer:
    ext = {"identity": broker.settings.identity, "bornHost": BORN.hex(), "serialization": JSON} | given
    return await client.request(FORWARD, ext, frame, serialization=serialization)


def inner_answer(answer: Answer) -> Response:
    """The answer for the client."""
    assert answer.code == ResponseCode.SUCCESS, answer
    assert answer.ext == {}
    [(response, _, _)], consumed = decode_chunk(answer.body)
    assert consumed == len(answer.body)
    assert isinstance(response, Response)
    assert response.opaque == 77
    return response


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_message_is_stored_as_sent_by_the_client(broker: RunningBroker, serialization: int) -> None:
    client = await connect_replica(broker)
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T", e=1), b"hello")
    answer = await forward(broker, client, frame, serialization=serialization)
    stored = inner_answer(answer)
    assert (stored.code, stored.ext["queueId"], stored.ext["queueOffset"]) == (0, "1", "0")
    again = inner_answer(await forward(broker, client, frame))
    assert again.ext["queueOffset"] == "1"
    record = (await client.pull("T", 1)).records[0]
    assert record.body == b"hello"
    assert record.born_host == ("10.1.2.3", 0x1234)
    assert int((await client.info())["raftmq.forwardedTaken"]) == 2


async def test_client_gets_the_answer_in_its_own_encoding(broker: RunningBroker) -> None:
    client = await connect_replica(broker)
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    answer = await forward(broker, client, frame, serialization=JSON)
    assert answer.body[4] == JSON
    ext = {"identity": broker.settings.identity, "bornHost": BORN.hex(), "serialization": BINARY}
    answer = await client.request(FORWARD, ext, frame)
    assert answer.body[4] == BINARY
    assert inner_answer(answer).ext["queueOffset"] == "1"


async def test_refusal_is_an_answer_for_the_client(tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_topics=False) as broker:
        client = await connect_replica(broker)
        frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("unknown"), b"hello")
        refused = inner_answer(await forward(broker, client, frame))
        assert (refused.code, refused.remark) == (
            ResponseCode.TOPIC_NOT_EXIST,
            "topic unknown does not exist, apply first please!",
        )


async def test_oneway_forwarded_requests_are_served_and_acknowledged(broker: RunningBroker) -> None:
    client = await connect_replica(broker)
    await client.create_topic("T")
    sent = await forward(broker, client, inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello", oneway=True))
    assert (sent.code, sent.body) == (ResponseCode.SUCCESS, b"")
    offset = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
    committed = await forward(broker, client, inner_frame(RequestCode.UPDATE_CONSUMER_OFFSET, offset, oneway=True))
    assert (committed.code, committed.body) == (ResponseCode.SUCCESS, b"")
    await client.wait_for(lambda info: info["raftmq.pendingBytes"] == "0")
    assert (await client.pull("T")).records[0].body == b"hello"
    assert await client.committed() == 1


async def test_unanswered_forwarded_request_is_still_confirmed_as_done(broker: RunningBroker) -> None:
    """Else whoever handed it on would take this broker for dead, and close the connections of all its clients."""
    client = await connect_replica(broker)
    half = await client.send(i=properties(TRAN_MSG="true", PGROUP="P"))
    ext = end_ext(half, 0)
    for oneway in (False, True):
        answer = await forward(broker, client, inner_frame(RequestCode.END_TRANSACTION, ext, oneway=oneway))
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"")


async def test_broker_refuses_forwarded_requests_for_the_replica_itself(broker: RunningBroker) -> None:
    client = await connect_replica(broker)
    ext = {"identity": broker.settings.identity, "bornHost": BORN.hex(), "serialization": JSON}
    nested = inner_frame(FORWARD, ext, inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello"))
    for frame in (nested, inner_frame(RequestCode.PULL_MESSAGE, pull_ext()), inner_frame(9999, {})):
        answer = await forward(broker, client, frame)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "cannot be forwarded" in answer.remark


@pytest.mark.parametrize(
    ("what", "given", "body"),
    [
        ("no frame", {}, b"x"),
        ("nothing", {}, b""),
        ("half a frame", {}, inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")[:-1]),
        ("two frames", {}, 2 * inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")),
        ("a length of 2 GiB", {}, b"\x7f\xff\xff\xff\0\0\0\0"),
        ("a host that is none", {"bornHost": "zz"}, inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"))),
        ("a short host", {"bornHost": "7f"}, inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"))),
        ("a header without its fields", {}, inner_frame(RequestCode.SEND_MESSAGE_V2, {})),
        ("no identity", {"identity": None}, b""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_garbage_is_refused(tmp_path: Path, what: str, given: dict[str, Any], body: bytes) -> None:
    async with running(tmp_path) as broker:
        client = await connect_replica(broker)
        assert (await forward(broker, client, body, **given)).code == ResponseCode.SYSTEM_ERROR, what
        assert await client.alive()


@pytest.mark.parametrize("encoding", [-1, 2, 256, 2**31 - 1])
async def test_unknown_header_encoding_is_refused(broker: RunningBroker, encoding: int) -> None:
    client = await connect_replica(broker)
    await client.create_topic("T")
    fields = {"identity": broker.settings.identity, "bornHost": BORN.hex(), "serialization": encoding}
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    assert (await client.request(FORWARD, fields, frame)).code == ResponseCode.SYSTEM_ERROR
    assert await client.alive()


async def test_log_of_another_group_is_refused(broker: RunningBroker) -> None:
    client = await connect_replica(broker)
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    answer = await forward(broker, client, frame, identity="another")
    assert answer.code == ResponseCode.NO_PERMISSION


async def test_client_on_the_host_of_a_replica_is_not_trusted(broker: RunningBroker) -> None:
    """The replica n9 is connected from the same address, and operators are allowed from it."""
    replica, client = await connect_replica(broker), await broker.connect()
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    announced = {"identity": broker.settings.identity, "nodeId": "n9", "address": "10.0.0.66:10911"}
    for answer in (
        await forward(broker, client, frame),
        await client.request(RequestCode.ANNOUNCE_REPLICA, announced),
    ):
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "is not authenticated as a replica" in str(answer.remark)
    assert int((await client.info())["raftmq.forwardedTaken"]) == 0
    assert (await replica.request(RequestCode.ANNOUNCE_REPLICA, announced)).code == ResponseCode.SUCCESS


async def test_forwarding_replica_must_prove_its_identity_and_dialled_address(
    broker: RunningBroker, client: Client
) -> None:
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    assert (await authenticate(broker, client, secrets=[bytes(32)])).remark == "authentication failed"
    assert "'n9' is not one of the other members" in str((await authenticate(broker, client)).remark)
    await add_learner(client)
    wrong: list[dict[str, Any]] = [
        {"address": "127.0.0.1:1"},
        {"identity": "another"},
        {"node_id": "n0"},
        {"node_id": "n8"},
    ]
    for given in wrong:
        answer = await authenticate(broker, client, **given)
        assert answer.code == ResponseCode.NO_PERMISSION, given
        assert (await forward(broker, client, frame)).code == ResponseCode.NO_PERMISSION
    assert (await authenticate(broker, client)).code == ResponseCode.SUCCESS
    assert inner_answer(await forward(broker, client, frame)).code == ResponseCode.SUCCESS


async def test_proof_is_valid_for_one_challenge_only(broker: RunningBroker) -> None:
    """Recorded, reflected, made up, or without a challenge: none lets the connection in, and all are told the same."""
    client = await connect_replica(broker)
    settings = broker.settings
    secrets = read_secrets(str(settings.secret_path))
    call = PeerCall(identity=settings.identity, node_id="n9", address=settings.listen, secrets=secrets, nonce=bytes(32))
    challenge = await client.request(RequestCode.AUTHENTICATE_REPLICA, fields_of(call.initial_frame()))
    proof = call.next_frame(as_response(challenge))
    assert proof is not None
    recorded = fields_of(proof)
    assert (await client.request(RequestCode.AUTHENTICATE_REPLICA, recorded)).code == ResponseCode.SUCCESS
    reflected = challenge.ext["challenge"][-64:]
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    for fields in (recorded, recorded | {"proof": reflected}, recorded | {"proof": reflected[:32]}, {"proof": "x"}):
        stranger = await broker.connect()
        for asks_first in (False, True):
            if asks_first:
                await stranger.request(RequestCode.AUTHENTICATE_REPLICA, fields_of(call.initial_frame()))
            answer = await stranger.request(RequestCode.AUTHENTICATE_REPLICA, fields)
            assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "authentication failed")
        assert (await forward(broker, stranger, frame)).code == ResponseCode.NO_PERMISSION


async def test_connection_that_used_an_old_secret_loses_trust(broker: RunningBroker) -> None:
    client = await connect_replica(broker)
    path, new = str(broker.settings.secret_path), new_secret()
    (old,) = read_secrets(path)
    frame = inner_frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"hello")
    write_secrets(path, (new, old))

    async def accepts_new() -> bool:
        return (await authenticate(broker, await broker.connect(), secrets=[new])).code == ResponseCode.SUCCESS

    await until(accepts_new)
    assert inner_answer(await forward(broker, client, frame)).code == ResponseCode.SUCCESS
    write_secrets(path, (new,))

    async def refuses_old() -> bool:
        return (await forward(broker, client, frame)).code == ResponseCode.NO_PERMISSION

    await until(refuses_old)
    assert (await authenticate(broker, client, secrets=[old])).code == ResponseCode.NO_PERMISSION
    assert (await authenticate(broker, client)).code == ResponseCode.SUCCESS
    assert inner_answer(await forward(broker, client, frame)).code == ResponseCode.SUCCESS


async def test_group_status_names_the_reason_of_a_silent_member(client: Client) -> None:
    await add_learner(client)
    reasons: list[str] = []

    async def told() -> bool:
        command = GroupCommand(action="status")
        answer = await client.request(RequestCode.MANAGE_GROUP, body=command.encode())
        view = GroupAnswer.decode(answer.body).view
        reasons[:] = [member.reason for member in view.members if member.node_id == "n9"]
        return bool(reasons[0])

    await until(told)
    assert "connection refused" in reasons[0]
