"""Votes, entries and hellos that somebody forges, those of different group, and replicas on the port of clients."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import trio

from mq.broker.settings import BrokerSettings
from mq.protocol.codes import RequestCode, ResponseCode
from raftlog import NodeId
from raftlog.consensus.messages import AppendReq, Heartbeat, TimeoutNow, VoteReq
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.net import authentication
from raftlog.net import frames as wire
from raftlog.net.authentication import NONCE_BYTES, TAG_BYTES, AuthenticationFailed, Seal
from raftlog.net.frames import Hello, Kind, RangeReq
from raftlog.net.secret_file import new_secret
from tests.attacks.target import ADMIN, MIB, Target
from tests.support.log_values import log_id
from tests.unit.replica.caller import Caller, call, received

pytestmark = pytest.mark.process

N0, N1 = NodeId("n0"), NodeId("n1")
TERM = 2**40
IDENTITY = BrokerSettings().identity
HELLO = Hello(
    IDENTITY, "broker-a", "n1", "n0", 8 * MIB, "control", addresses={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}
)
FORGED = {
    "a hello": wire.encode_cold(HELLO),
    "a vote": wire.encode_cold(VoteReq(N1, N0, Term(TERM), last=log_id(TERM, TERM), force=True)),
    "a heartbeat": wire.encode_cold(Heartbeat(N1, N0, Term(TERM), seq=1, commit=NO_INDEX)),
    "a transfer of leadership": wire.encode_cold(TimeoutNow(N1, N0, Term(TERM))),
    "entries": b"".join(wire.encode_append(AppendReq(N1, N0, Term(TERM), log_id(0, 0), (), NO_INDEX, 1), 0, [], 0, [])),
    "a request for the log": wire.encode_cold(RangeReq("log", 0, MIB, uncommitted=True)),
}


@pytest.mark.parametrize("forged", FORGED)
async def test_forged_messages_are_ignored(target: Target, forged: str) -> None:
    """Without a proof, with a tag that is made up, and behind a challenge that only the secret answers."""
    frame = FORGED[forged]
    for tag in (b"", bytes(TAG_BYTES), os.urandom(TAG_BYTES), Seal(new_secret()).tag(frame)):
        assert await received(await call(target.replication, frame + tag)) == b""
        named = authentication.secret_id(target.secrets[0])  # which is no secret: it is said aloud
        called = wire.encode_opening(Kind.CALL, os.urandom(NONCE_BYTES) + named)
        answer = await received(await call(target.replication, called, frame + tag, frame))
        kinds = [kind for kind, _ in wire.split_frames(memoryview(answer))[0]]
        assert kinds in ([], [Kind.CHALLENGE])


async def opened(target: Target, secrets: Sequence[bytes], hello: Hello) -> str | None:
    """Why a hello is refused; None if it is not."""
    caller = await Caller.open(target.replication, secrets)
    try:
        return (await caller.greet(hello)).refusal
    finally:
        await trio.aclose_forcefully(caller.stream)


async def test_replication_hello_with_another_secret_is_refused(target: Target) -> None:
    with pytest.raises(AuthenticationFailed):
        await Caller.open(target.replication, [new_secret()])


async def test_node_outside_this_group_is_refused_despite_the_secret(target: Target) -> None:
    """A machine of different group that was given the same secret, or one that was never added."""
    addresses = {"n0": "127.0.0.1:1", "n9": "127.0.0.1:2"}
    for hello in (
        HELLO,
        Hello("ff" * 16, "different group", "n1", "n0", 8 * MIB, "control"),
        Hello(IDENTITY, "broker-a", "n9", "n0", 8 * MIB, "bulk", conf_index=LogIndex(2**62), addresses=addresses),
        Hello(IDENTITY, "broker-a\n\x1b[2J", "n\x00", "../../n0", 8 * MIB, "control"),
    ):
        assert await opened(target, target.secrets, hello) is not None


async def test_recorded_connection_cannot_be_replayed(target: Target) -> None:
    """Everything that a member once said, said again: this time the challenge is another one."""
    caller = await Caller.open(target.replication, target.secrets)
    hello = caller.tagged(wire.encode_cold(HELLO))
    await trio.aclose_forcefully(caller.stream)
    answer = await received(await call(target.replication, wire.encode_opening(Kind.CALL, caller.called), hello))
    assert [kind for kind, _ in wire.split_frames(memoryview(answer))[0]] in ([], [Kind.CHALLENGE])


async def test_client_port_refuses_replicas_without_the_secret(target: Target) -> None:
    """A proof for the replication port, recorded or made up, is none for this one."""
    named = authentication.secret_id(target.secrets[0])
    caller = await Caller.open(target.replication, target.secrets)
    await trio.aclose_forcefully(caller.stream)
    who = {"identity": IDENTITY, "nodeId": "n1", "address": f"127.0.0.1:{target.clients}"}
    for called in (caller.called, os.urandom(NONCE_BYTES) + named, b"", bytes(30_000)):
        for proof in (Seal(caller.keys.caller).tag(b"x"), os.urandom(TAG_BYTES), b"", bytes(20_000)):
            async with target.client() as client:
                await client.request(RequestCode.AUTHENTICATE_REPLICA, {"call": called.hex()})
                answer = await client.request(RequestCode.AUTHENTICATE_REPLICA, who | {"proof": proof.hex()})
                assert answer.code == ResponseCode.NO_PERMISSION, answer
                assert (await client.request(RequestCode.GET_BROKER_CONFIG)).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("code", [RequestCode.FORWARD, RequestCode.RELAY_REPLY, RequestCode.ANNOUNCE_REPLICA])
async def test_broker_refuses_requests_of_replicas_from_clients(target: Target, code: RequestCode) -> None:
    """Also to an administrator: it would act for others, and lead clients elsewhere."""
    for keys in (None, ADMIN):
        async with target.client(keys) as client:
            fields = {"identity": IDENTITY, "bornHost": "7f00000100000001", "serialization": 0, "clientId": "c"}
            fields |= {"nodeId": "n0", "address": "10.0.0.1:1"} | dict.fromkeys(("group", "topic"), "x")
            answer = await client.request(code, fields, client.frame(RequestCode.GET_BROKER_CONFIG)[1])
            assert answer.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR), answer
