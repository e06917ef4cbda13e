"""Uploads in parts: what the store has compared need not be read back, and nothing else counts as compared."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from raftlog.segment.s3_upload import Uploads

PART_BYTES = 100


class Client:
    """A client of boto3 with a bucket in memory."""

    def __init__(self, *, checks: bool = True, repeats: bool = True, calculation: str = "when_supported") -> None:
        self.meta = SimpleNamespace(config=SimpleNamespace(request_checksum_calculation=calculation))
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] | None = None
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.damages_request = 0
        self.fails_at = -1
        self.trial_code = "BadDigest"
        self.repeated: str | None = None
        self._checks = checks
        self._repeats = repeats

    def put_object(self, *, Key: str, Body: bytes, **given: Any) -> dict[str, Any]:
        self.objects[Key] = Body
        return {}

    def create_multipart_upload(self, **given: Any) -> dict[str, Any]:
        self.parts = {}
        return {"UploadId": "u"}

    def upload_part(self, *, PartNumber: int, Body: bytes, UploadId: str, **given: Any) -> dict[str, Any]:
        assert self.parts is not None
        self.sent.append((PartNumber, given))
        if PartNumber == self.fails_at:
            raise ClientError({"Error": {"Code": "SlowDown"}}, "UploadPart")
        if len(self.sent) == self.damages_request:
            Body = Body[:-1] + b"?"
        found = base64.b64encode(zlib.crc32(Body).to_bytes(4, "big")).decode()
        named = given.get("ChecksumCRC32")
        if self._checks and named not in (None, found):
            raise ClientError({"Error": {"Code": self.trial_code}}, "UploadPart")
        self.parts[PartNumber] = Body
        repeated = named if self.repeated is None else self.repeated
        return {"ETag": "e"} | ({"ChecksumCRC32": repeated} if self._repeats and named else {})

    def complete_multipart_upload(self, *, Key: str, MultipartUpload: dict[str, Any], **given: Any) -> None:
        assert self.parts is not None
        if any(each.get("ChecksumCRC32") == "" for each in MultipartUpload["Parts"]):
            raise ClientError({"Error": {"Code": "MalformedXML"}}, "CompleteMultipartUpload")
        self.objects[Key] = b"".join(self.parts[each["PartNumber"]] for each in MultipartUpload["Parts"])
        self.parts = None

    def abort_multipart_upload(self, **given: Any) -> None:
        self.parts = None

    def head_object(self, *, Key: str, **given: Any) -> dict[str, Any]:
        return {"ContentLength": len(self.objects[Key])}

    def close(self) -> None:
        pass


CONTENT = bytes(range(256)) * 3


def pieces() -> Iterator[bytes]:
    yield CONTENT[:30]
    yield b""
    yield CONTENT[30:]


def put(client: Client) -> bool:
    is_compared = Uploads(lambda: client, "b", PART_BYTES).put(client, "k", pieces())
    assert client.parts is None
    return is_compared


def test_store_that_refuses_wrong_checksums_has_compared_the_object() -> None:
    client = Client()
    uploads = Uploads(lambda: client, "b", PART_BYTES)
    for name in ("k", "again"):
        assert uploads.put(client, name, pieces())
        assert client.objects[name] == CONTENT
    parts = -(-len(CONTENT) // PART_BYTES)
    numbers = sorted(number for number, _ in client.sent)
    assert numbers == sorted([1, *range(1, parts + 1), *range(1, parts + 1)]), "the wrong one is sent once"


@pytest.mark.parametrize(("checks", "repeats"), [(False, True), (True, False), (False, False)])
def test_store_that_ignores_checksums_or_repeats_any_has_compared_nothing(checks: bool, repeats: bool) -> None:
    client = Client(checks=checks, repeats=repeats)
    assert not put(client)
    assert client.objects["k"] == CONTENT, "the trial is not in it"


@pytest.mark.parametrize("repeated", ["", "AAAAAA==", "AAAAAA==-8"])
def test_store_that_answers_with_another_checksum_has_compared_nothing(repeated: str) -> None:
    client = Client()
    client.repeated = repeated
    assert not put(client)
    assert client.objects["k"] == CONTENT


def test_shorter_object_fails_the_comparison() -> None:
    client = Client()
    client.head_object = lambda **given: {"ContentLength": len(CONTENT) - 1}  # type: ignore[method-assign]
    assert not put(client)


def test_upload_without_a_resulting_object_was_not_compared() -> None:
    def missing(**given: Any) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "404"}}, "HeadObject")

    client = Client()
    client.head_object = missing  # type: ignore[method-assign]
    assert not put(client)


def test_no_checksums_are_sent_to_stores_without_checksums() -> None:
    client = Client(calculation="when_required")
    assert not put(client)
    assert client.objects["k"] == CONTENT
    assert not any("ChecksumCRC32" in given for _, given in client.sent)


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown"])
def test_other_refusals_of_a_wrong_checksum_prove_nothing(code: str) -> None:
    client = Client()
    client.trial_code = code
    assert not put(client)
    assert client.objects["k"] == CONTENT


def test_small_objects_are_one_request_and_are_not_compared() -> None:
    client = Client()
    uploads = Uploads(lambda: client, "b", PART_BYTES)
    for size in (0, 1, PART_BYTES):
        assert not uploads.put(client, "small", [CONTENT[:size]])
        assert client.objects["small"] == CONTENT[:size]
    assert client.sent == []


@pytest.mark.parametrize("fails_at", [2, 8])
def test_failed_upload_is_dropped(fails_at: int) -> None:
    client = Client()
    client.fails_at = fails_at
    with pytest.raises(ClientError):
        put(client)
    assert client.parts is None
    assert client.objects == {}


def test_unreadable_content_ends_the_upload() -> None:
    def broken() -> Iterator[bytes]:
        yield CONTENT
        raise OSError("of the disk")

    client = Client()
    with pytest.raises(OSError, match="of the disk"):
        Uploads(lambda: client, "b", PART_BYTES).put(client, "k", broken())
    assert client.parts is None
    assert client.objects == {}


def test_part_damaged_in_transit_is_refused() -> None:
    client = Client()
    client.damages_request = 5
    with pytest.raises(ClientError, match="BadDigest"):
        put(client)
    assert client.objects == {}
