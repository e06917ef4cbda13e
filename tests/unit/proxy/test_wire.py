"""The compiled messages of the gRPC protocol."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mq.proxy.wire import messaging_pb2 as pb

WIRE = Path(__file__).parents[3] / "mq" / "proxy" / "wire"


def test_messages_are_compiled_from_the_present_source() -> None:
    digest = hashlib.sha256((WIRE / "messaging.proto").read_bytes()).hexdigest()
    compiled = (WIRE / "messaging_pb2.py").read_text()
    assert compiled.endswith(f"# Made from messaging.proto with the SHA-256 {digest}\n"), "run make proto"


def test_encoded_messages_equal_those_of_real_clients() -> None:
    """As the official client for Python encodes them."""
    message = pb.Message(
        topic=pb.Resource(name="T"),
        body=b"b",
        user_properties={"k": "v"},
        system_properties=pb.SystemProperties(
            tag="t", keys=["x"], message_id="i", message_type=pb.FIFO, message_group="g", queue_id=3
        ),
    )
    assert pb.SendMessageRequest(messages=[message]).SerializeToString(deterministic=True).hex() == (
        "0a230a0312015412060a016b1201761a110a01741201781a0169300268038a010167220162"
    )
    assert pb.Status(code=pb.MESSAGE_NOT_FOUND).SerializeToString().hex() == "08d1bb02"
