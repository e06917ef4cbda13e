"""Signatures of plain sends: the compiled check against its reference, and what recorded requests can be made to do."""

from __future__ import annotations

import _hashlib
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.broker.access.control import AccessControl
from mq.client.net.credentials import Credentials
from mq.compiled import IS_COMPILED
from mq.protocol.access.signing import Signer, sign_fields
from tests.support.model_log import HOST
from tests.support.odd_properties import PROPERTIES
from tests.support.send_paths import BODY_BYTES_MAX, FORMS, Broker, Connection, frame, properties

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

ACCOUNTS = """
accounts:
- {accessKey: producer, secretKey: secret-1, topicPerms: [T=PUB]}
- {accessKey: consumer, secretKey: secret-2, topicPerms: [T=SUB]}
- {accessKey: operator, secretKey: secret-3, admin: true}
- {accessKey: neighbour, secretKey: secret-4, whiteRemoteAddress: 10.0.0.2, topicPerms: [T=PUB]}
"""


def signed_frame(
    access_key: str,
    secret_key: str,
    body: bytes,
    *,
    wrong: str = "",
    own: bool = False,
    header: dict[str, Any] | None = None,
    **ext: str,
) -> bytes:
    """A send with a signature, of our own client or of another; ``wrong`` spoils the header or the body after that."""
    plain = frame(body, header=header, raw=None, **ext)
    values = json.loads(plain[8 : 8 + int.from_bytes(plain[5:8], "big")])
    if own:
        values["extFields"] = Credentials(access_key, secret_key).sign(310, values["extFields"], body)
    else:
        values["extFields"] = sign_fields(access_key, secret_key, values["extFields"], body)
    fields = values["extFields"]
    match wrong:
        case "field":
            values["extFields"]["h"] = "1"
        case "signature":
            values["extFields"]["Signature"] = values["extFields"]["Signature"].swapcase()
        case "body":
            body += b"!"
        case "unsigned":
            del values["extFields"]["Signature"]
        case "moved":  # from the topic to the next field
            fields["b"], fields["c"] = fields["b"][:-1], fields["b"][-1:] + fields["c"]
        case "cut":  # from the body to the last field
            fields["n"], body = fields.get("n", "") + body[:1].decode("latin-1"), body[1:]
        case "empty":
            fields["n"] = ""
        case "stripped":
            fields["a"] = fields.pop("AccessLengths", "") + fields["a"]
        case "lengths":
            fields["AccessLengths"] = fields.get("AccessLengths", "")[:-1]
        case "more":
            values["extFields"]["z"] = "1"
        case _:
            pass
    encoded = json.dumps(values, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


_MOVED = ("moved", "cut", "empty", "stripped", "lengths")


@st.composite
def signed_frames(draw: st.DrawFn) -> bytes:
    pairs = [("producer", "secret-1"), ("consumer", "secret-2"), ("operator", "secret-3"), ("neighbour", "secret-4")]
    wrong_pairs = [("producer", "secret-2"), ("operator", "secret-1"), ("nobody", "x")]
    access_key, secret_key = draw(st.sampled_from([*pairs, *pairs[:1] * 4, *wrong_pairs]))
    wrong = draw(st.sampled_from([""] * 8 + ["field", "signature", "body", "unsigned", "more", *_MOVED]))
    text = draw(st.just(properties(UNIQ_KEY="A", TAGS="T")) | PROPERTIES)
    topic = draw(st.sampled_from(["T", "T", "Orders"]))
    opaque = {"opaque": draw(st.integers(0, 99))}
    more = draw(st.sampled_from([{}, {"n": "broker-a"}, {"n": ""}, {"m": "false"}, {"j": "0", "l": "16"}]))
    own = len(secret_key) > 6 and draw(st.booleans())
    body = draw(st.binary(max_size=9))
    return signed_frame(access_key, secret_key, body, wrong=wrong, own=own, header=opaque, b=topic, i=text, **more)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunk=st.lists(signed_frames(), max_size=6).map(b"".join), address=st.sampled_from(["10.0.0.2", "10.0.0.3"]))
def test_signatures_and_permissions_are_checked_as_by_the_reference(tmp_path: Path, chunk: bytes, address: str) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    log: Any = None
    seen = []
    for form in FORMS:
        broker, client = Broker(form=form, is_signed=True), Connection(HOST)
        results = broker.receive(client, chunk, AccessControl(path, log, "broker-a"), address)
        seen.append([results, broker.commit(), broker.refused, broker.others, broker.elsewhere.taken, client.received])
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("own", [False, True])
def test_signed_sends_take_the_fast_path(tmp_path: Path, own: bool) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    log: Any = None
    access = AccessControl(tmp_path / "plain_acl.yml", log)
    chunk = b"".join(signed_frame("producer", "secret-1", b"%d" % n, own=own) for n in range(20))
    broker = Broker(form="compiled", is_signed=True)
    assert broker.receive(Connection(HOST), chunk, access, "10.0.0.9") == broker.taken_plain == len(chunk)


@pytest.mark.parametrize("named", [{}, {"n": "broker-a"}, {"n": ""}])
def test_sends_naming_this_broker_take_the_fast_path(tmp_path: Path, named: dict[str, Any]) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    log: Any = None
    access = AccessControl(tmp_path / "plain_acl.yml", log, "broker-a")
    chunk, broker = signed_frame("producer", "secret-1", b"x", **named), Broker(form="compiled", is_signed=True)
    assert broker.receive(Connection(HOST), chunk, access, "10.0.0.9") == broker.taken_plain == len(chunk)


def test_field_added_to_a_recorded_send_cannot_take_bytes_of_its_body(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    log: Any = None
    for field, text in (("n", "the name of another broker, 'p'"), ("z", "the field 'z'")):
        for form in FORMS:
            sent = signed_frame("producer", "secret-1", b"pay 5")
            header = json.loads(sent[8:-5])
            header["extFields"][field] = "p"
            encoded = json.dumps(header, separators=(",", ":")).encode()
            chunk = struct.pack(">II", 4 + len(encoded) + 4, len(encoded)) + encoded + b"ay 5"
            broker, access = (
                Broker(form=form, is_signed=True),
                AccessControl(tmp_path / "plain_acl.yml", log, "broker-a"),
            )
            broker.receive(Connection(HOST), chunk, access, "10.0.0.9")
            assert broker.ends() == Broker(form=form, is_signed=True).ends()
            assert [text in each for each in broker.others] == [True], (field, broker.others)


@pytest.mark.parametrize("wrong", _MOVED)
def test_moved_borders_of_our_sends_are_refused(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    log: Any = None
    chunk = signed_frame("producer", "secret-1", b"pay 5", wrong=wrong, own=True)
    for form in FORMS:
        broker, client = Broker(form=form, is_signed=True), Connection(HOST)
        broker.receive(client, chunk, AccessControl(tmp_path / "plain_acl.yml", log, "broker-a"), "10.0.0.9")
        assert (broker.taken_plain, broker.ends()) == (0, Broker(form=form, is_signed=True).ends())
        assert ["the signature does not match" in each for each in broker.others] == [True], wrong


@pytest.fixture(params=["openssl", "hashlib"])
def sha1(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways in which the compiled module computes signatures."""
    from mq.compiled import plain_sends  # not there without a compiler

    library = _hashlib.__file__
    assert plain_sends.use_sha1_of(library if request.param == "openssl" else "/no/library") == (
        request.param == "openssl"
    )
    yield request.param
    plain_sends.use_sha1_of(library)


@pytest.mark.usefixtures("sha1")
@pytest.mark.parametrize("secret_key", ["secret-1", "s" * 63, "s" * 64, "s" * 65, "s" * 200, "geheim-ü"])
def test_only_correctly_signed_sends_take_the_fast_path(tmp_path: Path, secret_key: str) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(f"accounts:\n- {{accessKey: producer, secretKey: {secret_key}, topicPerms: [T=PUB]}}\n")
    log: Any = None
    access = AccessControl(path, log)
    right = b""
    for size in [*range(130), 1000, BODY_BYTES_MAX]:  # every rest of a block of SHA-1
        right = signed_frame("producer", secret_key, b"x" * size, i=properties(UNIQ_KEY="A", KEYS='\\"\n/'))
        broker = Broker(form="compiled", is_signed=True)
        assert broker.receive(Connection(HOST), right, access, "10.0.0.9") == broker.taken_plain == len(right)
    at = right.index(b'"Signature":"') + 13
    for n in range(28):
        changed = b"A" if right[at + n : at + n + 1] != b"A" else b"B"
        broker, wrong = Broker(form="compiled", is_signed=True), right[: at + n] + changed + right[at + n + 1 :]
        assert broker.receive(Connection(HOST), wrong, access, "10.0.0.9") == len(wrong)
        assert (broker.taken_plain, len(broker.others)) == (0, 1)


USERS = st.lists(
    st.sampled_from(
        [
            "- {accessKey: producer, secretKey: secret-1, topicPerms: [T=PUB]}",
            "- {accessKey: producer, secretKey: secret-1, topicPerms: [T=DENY, Orders=PUB]}",
            "- {accessKey: producer, secretKey: another-1, topicPerms: [T=PUB]}",
            "- {accessKey: consumer, secretKey: secret-2, defaultTopicPerm: PUB|SUB, topicPerms: [T=SUB]}",
            "- {accessKey: operator, secretKey: secret-3, admin: true}",
            "- {accessKey: operator, secretKey: secret-3}",
            "- {accessKey: neighbour, secretKey: secret-4, whiteRemoteAddress: 10.0.0.2, topicPerms: [T=PUB]}",
        ]
    ),
    unique_by=lambda row: row.split(",")[0],
    min_size=1,
)
ACL_FILES = st.builds(
    lambda white, rows: f"globalWhiteRemoteAddresses: [{white}]\naccounts:\n" + "\n".join(rows) + "\n",
    st.sampled_from(["", "", "10.0.0.2"]),
    USERS,
)


@pytest.mark.slow
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(ACL_FILES, st.lists(signed_frames(), max_size=4).map(b"".join)), min_size=1, max_size=4),
    address=st.sampled_from(["10.0.0.2", "10.0.0.3"]),
)
def test_changed_accounts_apply_from_the_next_chunk_like_in_the_reference(
    tmp_path: Path, steps: list[tuple[str, bytes]], address: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    seen = []
    for form in FORMS:
        broker, client, results = Broker(form=form, is_signed=True), Connection(HOST), list[object]()
        path.write_text(steps[0][0])
        access = AccessControl(path, structlog.get_logger())
        for number, (text, chunk) in enumerate(steps):
            path.write_text(text)
            os.utime(path, ns=(number, number))  # the clock of files is too coarse to tell two versions apart
            access.refresh()
            results.append(broker.receive(client, chunk, access, address))
        seen.append([results, broker.commit(), broker.refused, broker.others, broker.elsewhere.taken, client.received])
    assert seen[0] == seen[1] == seen[2]


def test_sends_of_a_removed_account_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    access, broker, client = (
        AccessControl(path, structlog.get_logger()),
        Broker(form="compiled", is_signed=True),
        Connection(HOST),
    )
    chunk = signed_frame("producer", "secret-1", b"x")
    assert broker.receive(client, chunk, access, "10.0.0.9") == broker.taken_plain == len(chunk)
    path.write_text(ACCOUNTS.replace("accessKey: producer", "accessKey: nobody-else"))
    os.utime(path, ns=(1, 1))
    access.refresh()
    assert broker.receive(client, chunk, access, "10.0.0.9") == len(chunk)
    assert broker.taken_plain == len(chunk)
    assert "unknown access key producer" in broker.others[0]


@pytest.mark.usefixtures("sha1")
def test_account_key_is_requested_for_each_topic_and_access_key() -> None:
    broker, sender = Broker(form="compiled", is_signed=True), cast("Any", Connection(HOST))
    sends = [("producer", "T"), ("producer", "T"), ("producer", "Orders"), ("operator", "Orders"), ("producer", "T")]
    keys = {b"producer": Signer("secret-1").key, b"operator": Signer("secret-3").key}
    asked: list[tuple[bytes, bytes]] = []

    def key_of(access_key: bytes, topic: bytes) -> bytes | None:
        asked.append((access_key, topic))
        return keys[access_key]

    secrets = {"producer": "secret-1", "operator": "secret-3"}
    chunk = b"".join(signed_frame(name, secrets[name], b"x", b=topic) for name, topic in sends)
    sender.keys = key_of
    assert broker.sends.take(sender, chunk) == len(chunk)
    assert asked == [(name.encode(), topic.encode()) for name, topic in sends[1:]]
    # A name of the same length needs its own key.
    disguised = signed_frame("producer", "secret-1", b"x") + signed_frame("operator", "secret-1", b"x")
    sender.keys = key_of
    assert broker.sends.take(sender, disguised) == len(signed_frame("producer", "secret-1", b"x"))
    # With the next chunk, it is asked again: accounts may have changed.
    sender.keys = lambda access_key, topic: None
    assert broker.sends.take(sender, chunk) == 0


def test_fast_path_leaves_signatures_of_too_large_bodies_unchecked() -> None:
    broker, sender = Broker(form="compiled", is_signed=True, entry_bytes_max=1000), cast("Any", Connection(HOST))
    asked: list[bytes] = []

    def key_of(access_key: bytes, topic: bytes) -> bytes:
        asked.append(topic)
        return Signer("secret-1").key

    sender.keys = key_of
    assert broker.sends.take(sender, signed_frame("producer", "secret-1", b"x" * 1500)) == 0
    assert asked == []  # the reference will
    sender.keys = key_of
    assert broker.sends.take(sender, signed_frame("producer", "secret-1", b"x" * 500)) > 0
    assert asked == [b"T"]
