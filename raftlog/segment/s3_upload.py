"""Stores objects in a bucket; large ones in parts, each with a checksum that the store has to compare.

Each byte is copied once, and its checksum taken once. The transfers of boto3 take two more checksums of each byte over
HTTP, copy it four times, and send it in pieces of 16 KiB: that is most of what an upload costs.

A store that refuses a part whose checksum is wrong, and repeats the checksums of all others in its answers, has what
was sent: nobody has to read it back. Some stores repeat whatever a client says, so each is tried out with a wrong one.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from raftlog.segment.checksum import crc32

PART_BYTES: Final = 8 * 1024 * 1024
"""Size of one part of an upload."""
PARTS_AT_ONCE: Final = 4
"""The number of parts in memory, less one."""
TRIAL: Final = b"a part whose checksum is wrong\n"

_MISSING: Final = frozenset(("404", "NoSuchKey", "NotFound"))
_MISMATCHES: Final = frozenset(("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"))


class Uploads:
    """Uploads to one bucket. For one thread at a time.

    Args:
        open_impatient: makes a client of boto3 that sends each request once.
    """

    def __init__(self, open_impatient: Callable[[], Any], bucket: str, part_bytes: int = PART_BYTES) -> None:
        self._open_impatient = open_impatient
        self._bucket = bucket
        self._part_bytes = part_bytes
        self._compares: bool | None = None
        """Whether the store refuses wrong checksums; None if nobody has tried yet."""

    def put(self, client: Any, key: str, pieces: Iterable[bytes]) -> bool:
        """Store an object; ``client`` retries requests.

        Returns whether the store has compared all of it with checksums that were taken here. It has not if the object
        is small, or the settings of boto3 say that this store knows no checksums.

        Raises the exceptions of boto3 and of ``pieces``; then nothing is stored.
        """
        parts = _parts(pieces, self._part_bytes)
        first = next(parts, b"")
        if (second := next(parts, None)) is None:
            client.put_object(Bucket=self._bucket, Key=key, Body=first)
            return False
        return self._put_parts(client, key, chain((first, second), parts))

    def _put_parts(self, client: Any, key: str, parts: Iterator[bytes]) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        has_checksums = client.meta.config.request_checksum_calculation != "when_required"
        checksum_option = {"ChecksumAlgorithm": "CRC32"} if has_checksums else {}
        response = client.create_multipart_upload(Bucket=self._bucket, Key=key, **checksum_option)
        upload = {"Bucket": self._bucket, "Key": key, "UploadId": response["UploadId"]}
        try:
            compares = has_checksums and self._finds_wrong_checksums(upload)
            uploads = list(_send(client, upload, parts, has_checksums=has_checksums))
            part_list = [part for part, _, _ in uploads]
            client.complete_multipart_upload(**upload, MultipartUpload={"Parts": part_list})
        except BaseException:
            with suppress(BotoCoreError, ClientError, HTTPError):
                client.abort_multipart_upload(**upload)
            raise
        if not compares or not all(is_repeated for _, _, is_repeated in uploads):
            return False
        try:
            nbytes_stored: int = client.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in _MISSING:
                raise
            return False  # reading it back tells whether it is lost, or only not there yet
        return nbytes_stored == sum(nbytes for _, nbytes, _ in uploads)

    def _finds_wrong_checksums(self, upload: Mapping[str, str]) -> bool:
        """Whether the store refuses a first part whose checksum is wrong; if not, the right one replaces it."""
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        if self._compares is None:
            client = self._open_impatient()  # boto3 retries a wrong checksum, as if it came from the network
            try:
                client.upload_part(**upload, PartNumber=1, Body=TRIAL, ChecksumCRC32=_checksum(TRIAL[1:]))
                self._compares = False
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _MISMATCHES:
                    return False  # not known: the next request says what is wrong
                self._compares = True
            except (BotoCoreError, HTTPError):
                return False
            finally:
                client.close()
        return self._compares


def _send(
    client: Any, upload: Mapping[str, str], parts: Iterator[bytes], *, has_checksums: bool
) -> Iterator[tuple[dict[str, Any], int, bool]]:
    """Send the parts; yields each part's name for the end, its size, and whether the answer repeats its checksum."""

    def send(number: int, data: bytes) -> tuple[dict[str, Any], int, bool]:
        checksum = _checksum(data)
        checksum_field = {"ChecksumCRC32": checksum} if has_checksums else {}
        response = client.upload_part(**upload, PartNumber=number, Body=data, **checksum_field)
        part = {"PartNumber": number, "ETag": response["ETag"]}
        if response_checksum := response.get("ChecksumCRC32"):  # not if the header is there and empty
            part["ChecksumCRC32"] = response_checksum
        return part, len(data), response_checksum == checksum

    pending: deque[Future[tuple[dict[str, Any], int, bool]]] = deque()
    with ThreadPoolExecutor(PARTS_AT_ONCE, "upload") as pool:
        for number, data in enumerate(parts, 1):
            if len(pending) == PARTS_AT_ONCE:
                yield pending.popleft().result()
            pending.append(pool.submit(send, number, data))
        while pending:
            yield pending.popleft().result()


def _checksum(data: bytes) -> str:
    return base64.b64encode(crc32(data).to_bytes(4, "big")).decode()


def _parts(pieces: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """Cut bytes into parts of ``part_bytes``, only the last one smaller; none is empty."""
    chunks: list[memoryview] = []
    nbytes = 0
    for piece in pieces:
        rest = memoryview(piece)
        while nbytes + len(rest) >= part_bytes:
            room = part_bytes - nbytes
            yield b"".join((*chunks, rest[:room]))
            rest, chunks, nbytes = rest[room:], [], 0
        if rest:
            chunks.append(rest)
            nbytes += len(rest)
    if chunks:
        yield b"".join(chunks)
