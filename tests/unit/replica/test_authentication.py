"""The replication port and those who attack it: who does not have the secret of the group gets nothing."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from raftlog import NodeId
from raftlog.consensus.messages import AppendReq, Heartbeat, VoteReq
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.net import authentication
from raftlog.net import frames as wire
from raftlog.net.authentication import NONCE_BYTES, TAG_BYTES, AuthenticationFailed, Keys, Seal
from raftlog.net.caller_handshake import PURPOSE
from raftlog.net.frames import Hello, Kind, RangeReq
from raftlog.net.secret_file import new_secret, write_secrets
from tests.free_ports import free_ports
from tests.support.log_values import log_id
from tests.support.strange_callers import ADDRESSES, HELLO, check_unharmed, connected_peer, lonely
from tests.support.waiting import until
from tests.unit.replica.caller import Caller, call, received
from tests.unit.replica.group import CLUSTER, SEGMENT_BYTES, Node, started

N0, N1 = NodeId("n0"), NodeId("n1")
SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
NONCE_1, NONCE_2 = bytes(NONCE_BYTES), b"\1" * NONCE_BYTES
VOTE = wire.encode_cold(VoteReq(N1, N0, Term(50), last=log_id(10**6, 50), force=True))
REFUSED = wire.encode_opening(Kind.CHALLENGE, b"")


def shaken(purpose: bytes = PURPOSE, mine: bytes = SECRET, theirs: bytes = SECRET) -> tuple[Keys, Keys]:
    """What the caller and the listener have after the challenge."""
    called = authentication.call(NONCE_1, [mine])
    challenged, keys = authentication.challenge(purpose, called, NONCE_2, [theirs])
    return authentication.accept(PURPOSE, called, challenged, [mine]), keys


# -- the pure part -----------------------------------------------------------------------------------------------------


def test_both_sides_derive_the_same_pair_of_keys() -> None:
    caller, listener = shaken()
    assert caller == listener
    assert caller.caller != caller.listener


def test_wrong_secret_or_purpose_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="a different group secret"):
        shaken(theirs=OTHER)
    with pytest.raises(AuthenticationFailed, match="does not have the group secret that it names"):
        shaken(purpose=b"client port, version 1")


def test_keys_depend_on_the_secret_the_nonces_and_the_purpose() -> None:
    seen = set()
    for secret in (SECRET, OTHER):
        for nonces in ((NONCE_1, NONCE_2), (NONCE_2, NONCE_1), (NONCE_1, NONCE_1)):
            for purpose in (b"a", b"b"):
                _, keys = authentication.challenge(
                    purpose, authentication.call(nonces[0], [secret]), nonces[1], [secret]
                )
                seen |= {keys.caller, keys.listener}
    assert len(seen) == 2 * 3 * 2 * 2


@pytest.mark.parametrize("at", [0, NONCE_BYTES - 1, NONCE_BYTES, NONCE_BYTES + 8, NONCE_BYTES + 39])
def test_altered_challenge_is_refused(at: int) -> None:
    called = authentication.call(NONCE_1, [SECRET])
    challenged, _ = authentication.challenge(PURPOSE, called, NONCE_2, [SECRET])
    altered = challenged[:at] + bytes([challenged[at] ^ 1]) + challenged[at + 1 :]
    with pytest.raises(AuthenticationFailed):
        authentication.accept(PURPOSE, called, altered, [SECRET])


def test_challenge_for_another_call_is_refused() -> None:
    """Somebody recorded it, or asked another replica for it."""
    challenged, _ = authentication.challenge(PURPOSE, authentication.call(NONCE_2, [SECRET]), NONCE_2, [SECRET])
    with pytest.raises(AuthenticationFailed, match="does not have the group secret that it names"):
        authentication.accept(PURPOSE, authentication.call(NONCE_1, [SECRET]), challenged, [SECRET])


@pytest.mark.parametrize("size", [0, 1, NONCE_BYTES, NONCE_BYTES + 7, NONCE_BYTES + 24, 1000])
def test_calls_and_challenges_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(AuthenticationFailed):
        authentication.challenge(PURPOSE, bytes(size), NONCE_2, [SECRET])
    with pytest.raises(AuthenticationFailed):
        authentication.accept(PURPOSE, authentication.call(NONCE_1, [SECRET]), bytes(size), [SECRET])


def test_replicas_share_a_secret_during_every_rotation_step() -> None:
    old, both, new = [OTHER], [SECRET, OTHER], [SECRET]
    for mine, theirs, chosen in (
        (old, both, OTHER),
        (both, old, OTHER),
        (both, both, SECRET),
        (both, new, SECRET),
        (new, both, SECRET),
    ):
        called = authentication.call(NONCE_1, mine)
        challenged, keys = authentication.challenge(PURPOSE, called, NONCE_2, theirs)
        assert authentication.accept(PURPOSE, called, challenged, mine) == keys
        assert keys.secret_id == authentication.secret_id(chosen)
    with pytest.raises(AuthenticationFailed):
        authentication.challenge(PURPOSE, authentication.call(NONCE_1, old), NONCE_2, new)


FRAMES = ((b"first", b""), (b"x" * 3000, b""), (b"head", b"hints"), (b"x" * 3000, b"y" * 3000), (b"", b""))


def test_altered_repeated_omitted_or_moved_frames_are_detected() -> None:
    for first, last in FRAMES:
        sender = Seal(SECRET)
        tags = [sender.tag(first, last) for _ in range(3)]
        assert all(len(tag) == TAG_BYTES for tag in tags)
        receiver = Seal(SECRET)
        for tag in tags:
            receiver.check(tag, first, last)
        for wrong in (tags[0], tags[1], bytes(TAG_BYTES), tags[2][:-1]):
            with pytest.raises(AuthenticationFailed):
                receiver.check(wrong, first, last)
    for first, last in ((b"firsT", b""), (b"firs", b"t"), (b"first", b"!")):
        with pytest.raises(AuthenticationFailed):
            Seal(SECRET).check(Seal(SECRET).tag(b"first"), first, last)
    with pytest.raises(AuthenticationFailed):
        Seal(OTHER).check(Seal(SECRET).tag(b"first"), b"first")


# -- attacks on a running replica --------------------------------------------------------------------------------------


async def answer_to(port: int, *data: bytes) -> bytes:
    return await received(await call(port, *data))


def assert_nothing_told(data: bytes) -> None:
    """At most a challenge came, which a reset of the connection may have overtaken."""
    frames, consumed = wire.split_frames(memoryview(data))
    assert [kind for kind, _ in frames] in ([], [Kind.CHALLENGE])
    assert consumed == len(data)


async def test_callers_without_the_secret_get_equal_answers(tmp_path: Path) -> None:
    """Whatever a caller claims to be, it gets the same bytes."""
    async with lonely(tmp_path, refusal_log_seconds=60.0) as (node, port):
        claims = [
            HELLO,
            Hello("ff" * 16, "h", "n9", "n8", 1, "bulk"),
            Hello(
                CLUSTER,
                "g",
                "n3",
                "n0",
                SEGMENT_BYTES,
                "bulk",
                conf_index=LogIndex(2**62),
                addresses={"n0": "x", "n3": "y"},
            ),
        ]
        with capture_logs() as log:
            for secret in (OTHER, new_secret()):
                for hello in claims:
                    called = wire.encode_opening(Kind.CALL, authentication.call(os.urandom(NONCE_BYTES), [secret]))
                    assert await answer_to(port, called) == REFUSED
                    frame = wire.encode_cold(hello)
                    assert await answer_to(port, frame) == b""
                    keys, _ = shaken(mine=secret, theirs=secret)
                    stream = await call(port, called)
                    assert await received(stream) == REFUSED, keys
        reasons = [line["error"] for line in log if line["event"] == "peer_refused"]
        assert reasons == ["authentication failed: the caller uses a different group secret (called from 127.0.0.1)"]
        await check_unharmed(node, port, node.log.last_index)


@pytest.mark.parametrize(
    "frame",
    [
        VOTE,
        wire.encode_cold(Heartbeat(N1, N0, Term(2**62), seq=1, commit=NO_INDEX)),
        wire.encode_cold(RangeReq("log", 0, 1024 * 1024, uncommitted=True)),
        b"".join(wire.encode_append(AppendReq(N1, N0, Term(60), log_id(0, 0), (), NO_INDEX, 1), 0, [], 0, [])),
        wire.encode_cold(HELLO),
    ],
    ids=["vote", "heartbeat", "range", "append", "hello"],
)
async def test_frames_without_a_proof_are_ignored(tmp_path: Path, frame: bytes) -> None:
    """Before the call, and behind a challenge to which nobody without the secret has the answer."""
    async with lonely(tmp_path) as (node, port):
        term = node.replica.core.term
        assert await answer_to(port, frame) == b""
        secret_id = authentication.secret_id(node.secrets.current[0])
        for tag in (b"", bytes(TAG_BYTES), Seal(OTHER).tag(frame)):
            stream = await call(port, wire.encode_opening(Kind.CALL, NONCE_1 + secret_id))
            await stream.send_all(frame + tag + frame + bytes(TAG_BYTES))
            assert_nothing_told(await received(stream))
        assert node.replica.core.term < term + 40
        await check_unharmed(node, port, node.log.last_index)


async def test_recorded_connection_cannot_be_replayed(tmp_path: Path) -> None:
    """All bytes of a caller that was let in, sent again: the challenge is another one."""
    async with lonely(tmp_path) as (node, port):
        nonce = os.urandom(NONCE_BYTES)
        caller = await Caller.open(port, node.secrets.current, nonce)
        said = wire.encode_opening(Kind.CALL, caller.called)
        hello = caller.tagged(wire.encode_cold(HELLO))
        await caller.stream.send_all(hello)
        await caller.stream.aclose()
        stream = await call(port, said)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.send_all(hello)
        assert_nothing_told(await received(stream))
        await check_unharmed(node, port, node.log.last_index)


async def test_messages_reflected_to_their_replica_are_refused(tmp_path: Path) -> None:
    """Without the secret: the listener's own call and proof are sent to it again."""
    async with lonely(tmp_path) as (node, port):
        caller = await Caller.open(port, node.secrets.current)
        await trio.aclose_forcefully(caller.stream)
        proof = caller.challenged[-32:]
        hello = wire.encode_cold(HELLO)
        stream = await call(port, wire.encode_opening(Kind.CALL, caller.challenged[:NONCE_BYTES] + caller.called[-8:]))
        for tag in (proof[:TAG_BYTES], proof[TAG_BYTES:], Seal(proof).tag(hello)):
            await stream.send_all(hello + tag)
            assert_nothing_told(await received(stream))
            stream = await call(port, wire.encode_opening(Kind.CALL, caller.called))
        await trio.aclose_forcefully(stream)
        await check_unharmed(node, port, node.log.last_index)


async def test_replica_refuses_its_own_relayed_call(tmp_path: Path) -> None:
    """Who listens at a peer's address passes everything on to the replica that called: both have the secret."""
    async with lonely(tmp_path) as (node, port):
        caller = await Caller.open(port, node.secrets.current)
        answer = await caller.greet(node.transport._admission.hello(N1, "control", "x"))
        assert answer.refusal is not None
        assert "this is node 'n0', not 'n1'" in answer.refusal
        assert await received(caller.stream) == b""


@pytest.mark.parametrize("attack", ["altered", "injected", "repeated", "left out", "without a tag"])
async def test_frames_of_an_interceptor_end_the_connection(tmp_path: Path, attack: str) -> None:
    async with lonely(tmp_path) as (node, port):
        term = node.replica.core.term
        caller = await connected_peer(node, port)
        ping, vote = caller.tagged(wire.PING), caller.tagged(VOTE)
        altered = vote[:40] + bytes([vote[40] ^ 1]) + vote[41:]
        data = {
            "altered": ping + altered,
            "injected": ping + VOTE + bytes(TAG_BYTES),
            "repeated": ping + ping + vote,
            "left out": vote,
            "without a tag": ping + VOTE + VOTE,
        }[attack]
        with capture_logs() as log:
            await caller.stream.send_all(data)
            assert await received(caller.stream) == b""
        events = [line["event"] for line in log if line["event"] != "peer_unreachable"]
        assert events == ["peer_message_invalid" if attack == "without a tag" else "peer_refused"]
        assert node.replica.core.term < term + 40
        await check_unharmed(node, port, node.log.last_index)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conf_index": 2**62, "source": "n3", "addresses": ADDRESSES | {"n3": "x:1"}}, "entry 4611686018427387904"),
        ({"conf_index": -1}, "entry -1"),
        ({"source": "n3", "addresses": {"n3": "x:1"}, "conf_index": 9}, "not a member"),
        ({"source": "n3", "conf_index": 9}, "not a member"),
        ({"store_id": "x" * 4096}, "at most 64 characters"),
        ({"stores": {"n2": "x" * 4096}}, "at most 64 characters"),
        ({"incarnation": "x" * 4096}, "at most 64 characters"),
        ({"addresses": {f"n{n}": "x:1" for n in range(17)}}, "at most 16 members, 17 are named"),
        ({"source": "n" * 65}, "1 to 64 characters"),
        ({"source": ""}, "1 to 64 characters"),
        ({"addresses": ADDRESSES | {"n1": "x" * 301}}, "at most 300 characters"),
    ],
)
async def test_impossible_hellos_with_the_secret_are_refused(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    async with lonely(tmp_path) as (node, port):
        fields = {name: getattr(HELLO, name) for name in Hello.__struct_fields__}
        caller = await Caller.open(port, node.secrets.current)
        refusal = (await caller.greet(Hello(**fields | changes))).refusal
        assert refusal is not None
        assert words in refusal
        assert await received(caller.stream) == b""
        await check_unharmed(node, port, node.log.last_index)


async def test_guests_are_bounded(tmp_path: Path) -> None:
    """Nodes with the secret that show newer configurations, one more than there may be members."""
    async with lonely(tmp_path) as (node, port):
        refusals = []
        for number in range(3, 20):
            name = f"n{number}"
            guest = {"n0": "127.0.0.1:1", name: "127.0.0.1:1"}
            caller = await Caller.open(port, node.secrets.current)
            hello = Hello(CLUSTER, "g", name, "n0", SEGMENT_BYTES, "bulk", conf_index=LogIndex(9), addresses=guest)
            refusals.append((await caller.greet(hello)).refusal)
            await trio.aclose_forcefully(caller.stream)
        assert refusals[:16] == [None] * 16
        assert "16 guests" in str(refusals[16])
        await check_unharmed(node, port, node.log.last_index)


# -- rotation ----------------------------------------------------------------------------------------------------------


async def change_secrets(node: Node, *secrets: bytes) -> None:
    """Write the file, and wait until the replica has read it."""
    write_secrets(node.secrets.path, secrets)
    await until(lambda: node.secrets.current == secrets)


def has_applied(index: int, node: Node) -> bool:
    return node.replica.applied_index >= index


def used(*nodes: Node) -> set[bytes]:
    """The secrets that connections were opened with."""
    return {link.secret_id for node in nodes for link in node.transport._outbound.values()}


async def test_old_secret_is_refused_after_a_rotation(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        (old,), new = node.secrets.current, new_secret()
        with_old = await Caller.open(port, [old])
        assert (await with_old.greet(HELLO)).refusal is None
        with pytest.raises(AuthenticationFailed):
            await Caller.open(port, [new])
        await change_secrets(node, new, old)
        with_new = await Caller.open(port, [new])
        assert (await with_new.greet(HELLO)).refusal is None
        another = await Caller.open(port, [old])
        assert (await another.greet(HELLO)).refusal is None
        await with_old.stream.send_all(with_old.tagged(wire.PING))
        with trio.move_on_after(0.2) as looking:
            await with_old.stream.receive_some()
        assert looking.cancelled_caught, "a connection was closed although its secret is valid"
        await change_secrets(node, new)
        assert await received(with_old.stream) == b""
        assert await received(another.stream) == b""
        with pytest.raises(AuthenticationFailed):
            await Caller.open(port, [old])
        await with_new.stream.send_all(with_new.tagged(wire.PING))
        await with_new.stream.aclose()
        await check_unharmed(node, port, node.log.last_index)


async def test_unusable_file_changes_nothing(tmp_path: Path) -> None:
    async with lonely(tmp_path) as (node, port):
        with capture_logs() as log:
            await trio.Path(node.secrets.path).write_text("nonsense\n")
            await until(lambda: any(line["event"] == "group_secret_unusable" for line in log))
        await check_unharmed(node, port, node.log.last_index)


async def test_group_continues_while_its_secret_is_replaced(tmp_path: Path) -> None:
    async with started(tmp_path) as (leader, followers):
        (old,), new = leader.secrets.current, new_secret()
        for secrets in ((new, old), (new,)):
            write_secrets(leader.secrets.path, secrets)
            for node in (leader, *followers):
                await until(lambda: node.secrets.current == secrets)
            index = leader.append(b"while it changes")
            assert isinstance(index, int)
            for node in (leader, *followers):
                await node.wait_until(partial(has_applied, index))
        valid = authentication.secret_id(new)
        await until(lambda: used(leader, *followers) == {valid})


async def test_replicas_with_different_secrets_log_the_reason(tmp_path: Path) -> None:
    ports = dict(zip(("n0", "n1"), free_ports(2), strict=True))
    nodes = [Node(tmp_path / "a", "n0", ports), Node(tmp_path / "b", "n1", ports)]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        for node, peer in zip(nodes, (N1, N0), strict=True):
            await node.wait_until(
                lambda node: any(reason.startswith("authentication") for reason in node.transport.failures.values())
            )
            assert node.transport.failures[peer].startswith("authentication failed: ")
            assert not node.transport.connected(peer)
        nursery.cancel_scope.cancel()
