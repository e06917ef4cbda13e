"""A backup in a bucket of Amazon S3, or of compatible object storage.

boto3 does the work: it finds credentials in the usual places, signs, retries, and uploads large objects in parts. It is
imported when a bucket is used, since it is an optional dependency.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from raftlog.segment.backup_store import (
    CONDITIONS_NAME,
    MANIFEST_NAME,
    BackupDamaged,
    BackupRefused,
    ManifestChanged,
    NotStored,
    StoreFailed,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

SCHEME: Final = "s3://"
PART_BYTES: Final = 8 * 1024 * 1024
"""Size of one part of an upload. Up to a dozen of them are in memory."""
PARTS_AT_ONCE: Final = 4
READ_BYTES: Final = 16 * 1024 * 1024
"""Minimum size of a read request."""
READ_ATTEMPTS: Final = 3
"""boto3 retries requests, but not after the content of an answer has begun to arrive."""
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECT_SECONDS: Final = 10
_WRITING: Final = "writing it"

_URL = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(.*))?", re.DOTALL)
SECRET_IN_URL: Final = "credentials do not belong into it: use AWS_ACCESS_KEY_ID, or a profile"  # noqa: S105 - a reason
NO_BUCKET: Final = "is not s3://BUCKET/PREFIX"
_MISSING = frozenset(("NoSuchKey", "404", "NotFound"))
_CONFLICTS = frozenset(("PreconditionFailed", "ConditionalRequestConflict", "412"))
_SECRET_IN_URL = re.compile(r"//[^/@\s\"']+@")


class S3Store:
    """Objects below a prefix. Use `open_s3`.

    A bucket has no locks. Concurrent runs do not harm each other, since no object is written twice except the manifest.
    That is replaced only if it is still the one that was loaded, so the later run is refused.
    """

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """``prefix`` is empty or ends with a slash."""
        self.name = f"{SCHEME}{bucket}/{prefix}".rstrip("/")
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._etag: str | None = None
        self._block: tuple[str, int, bytes] = ("", 0, b"")

    def path(self, name: str) -> str:
        """Its URL."""
        return f"{self.name}/{name}"

    def begin_writing(self) -> None:
        """Nothing to create or lock."""

    def names(self, folder: str = "") -> Iterator[str]:
        """Lists a thousand at a time."""
        prefix = self._prefix + (folder and f"{folder}/")
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix, Delimiter="/"
        )
        with _Failures(f"{self.name}/{folder}", "listing it"):
            for page in pages:
                for each in page.get("CommonPrefixes", ()):
                    yield each["Prefix"][len(prefix) :].rstrip("/")
                for each in page.get("Contents", ()):
                    if name := each["Key"][len(prefix) :]:  # a folder created in a console has an object, too
                        yield name

    def read(self, name: str, length: int, offset: int) -> bytes:
        """Reads ahead, and caches that for the next call."""
        known, start, block = self._block
        if known != name or not start <= offset or offset + length > start + len(block):
            start, block = offset, self._ranged(name, max(length, READ_BYTES), offset)
            self._block = (name, start, block)
        return block[offset - start : offset - start + length]

    def load_manifest(self) -> bytes | None:
        """Remembers its version, for `replace_manifest`."""
        path = self.path(MANIFEST_NAME)
        try:
            with _Failures(path, "reading it"):
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + MANIFEST_NAME)
                content: bytes = answer["Body"].read(MANIFEST_BYTES_MAX + 1)
        except NotStored:
            self._etag = None
            return None
        if len(content) > MANIFEST_BYTES_MAX:
            raise BackupDamaged(path, f"it has more than {MANIFEST_BYTES_MAX} bytes")
        self._etag = answer["ETag"]
        return content

    def replace_manifest(self, content: bytes) -> None:
        """By a conditional write."""
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if self._etag is None else {"IfMatch": self._etag}
        path = self.path(MANIFEST_NAME)
        try:
            with _Failures(path, _WRITING):
                try:
                    answer = self._client.put_object(
                        Bucket=self._bucket,
                        Key=self._prefix + MANIFEST_NAME,
                        Body=content,
                        ContentType="application/json",
                        **condition,
                    )
                    self._etag = answer["ETag"]
                except ClientError as error:
                    if _code(error) not in _CONFLICTS:
                        raise
                    raise NotStored(path) from error
        except NotStored as error:
            if self.load_manifest() != content:  # equal if the answer to the first attempt was lost
                raise ManifestChanged(
                    self.name, "another run has changed this backup meanwhile; what this run copied does not count"
                ) from error

    def check_conditions(self) -> None:
        """Refuse a store that ignores the conditions of writes: with two writers, it would lose a manifest.

        Raises:
            BackupRefused: it ignores them. Also `StoreFailed`.
        """
        from botocore.exceptions import ClientError

        path = self.path(CONDITIONS_NAME)
        with _Failures(path, _WRITING):
            for _ in range(2):
                try:
                    self._client.put_object(
                        Bucket=self._bucket, Key=self._prefix + CONDITIONS_NAME, Body=b"conditions\n", IfNoneMatch="*"
                    )
                except ClientError as error:
                    if _code(error) not in _CONFLICTS:
                        raise
                    return
        raise BackupRefused(self.name, "the store overwrites objects although If-None-Match forbids it")

    def write(self, name: str, pieces: Iterable[bytes]) -> None:
        """In parts, if it is large."""
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(
            multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        config.max_in_memory_upload_chunks = PARTS_AT_ONCE
        with _Failures(self.path(name), _WRITING):
            self._client.upload_fileobj(_Stream(pieces), self._bucket, self._prefix + name, Config=config)

    def remove(self, name: str) -> None:
        """One request."""
        with _Failures(self.path(name), "removing it"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def free_bytes(self) -> int | None:
        """Unknown for a bucket."""
        return None

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def read_range(self, name: str, length: int, offset: int) -> bytes:
        """One request for exactly these bytes; fewer only at the end. Unlike the others, for any thread at any time."""
        return self._ranged(name, length, offset)

    def _ranged(self, name: str, length: int, offset: int) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        with _Failures(self.path(name), "reading it"):
            for attempt in range(1, READ_ATTEMPTS + 1):
                try:
                    answer = self._client.get_object(
                        Bucket=self._bucket,
                        Key=self._prefix + name,
                        Range=f"bytes={offset}-{offset + length - 1}",
                    )
                except ClientError as error:
                    if _code(error) in ("InvalidRange", "416"):
                        return b""
                    raise
                try:
                    content: bytes = answer["Body"].read()
                    return content
                except (BotoCoreError, HTTPError):
                    if attempt == READ_ATTEMPTS:
                        raise
        raise AssertionError("unreachable")


def has_secret(url: str) -> bool:
    """Whether a URL has credentials in it."""
    return _SECRET_IN_URL.search(url) is not None


def why_no_bucket(url: str) -> str | None:
    """Why `open_s3` refuses a URL; None if it does not."""
    if has_secret(url):
        return SECRET_IN_URL
    return NO_BUCKET if _URL.fullmatch(url) is None else None


def open_s3(url: str, endpoint_url: str | None = None, *, answer_seconds: float | None = None) -> S3Store:
    """A store for ``s3://BUCKET/PREFIX``. Sends nothing yet.

    Args:
        endpoint_url: of another service than Amazon's; default: from the environment or the profile.
        answer_seconds: a request fails when nothing came for so long, and is repeated once; default: as boto3 has it.

    Raises:
        BackupRefused: the URL is invalid, or boto3 is not installed.
        StoreFailed: the configuration of boto3 is wrong.
    """
    if has_secret(url) or (endpoint_url and has_secret(endpoint_url)):
        raise BackupRefused("the URL of a backup", SECRET_IN_URL)
    if (found := _URL.fullmatch(url)) is None:
        raise BackupRefused(url, NO_BUCKET)
    try:
        from boto3.session import Session
        from botocore.config import Config
    except ImportError as error:
        raise BackupRefused(url, "this needs boto3: pip install 'raftmq[s3]'") from error
    bucket, prefix = found[1], (found[2] or "").strip("/")
    with _Failures(url, "opening it"):
        try:
            # What is read is verified against the manifest and the chain of the log. Some services name the checksum of
            # the whole object when a range of it is read, and boto3 would refuse that.
            config = Config(connect_timeout=CONNECT_SECONDS, response_checksum_validation="when_required")
            if answer_seconds is not None:
                hasty = Config(
                    connect_timeout=answer_seconds, read_timeout=answer_seconds, retries={"total_max_attempts": 2}
                )
                config = config.merge(hasty)
            client = Session().client("s3", endpoint_url=endpoint_url, config=config)
        except ValueError as error:
            raise StoreFailed(url, "opening it", str(error)) from error
    return S3Store(client, bucket, prefix and f"{prefix}/")


class _Stream:
    """Pieces as a read-only file. Buffers at most one piece."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, length: int = -1) -> bytes:
        """``length`` bytes, fewer only at the end."""
        taken = bytearray()
        while length < 0 or len(taken) < length:
            if not self._rest:
                if (piece := next(self._pieces, None)) is None:
                    break
                self._rest = memoryview(piece)
            wanted = len(self._rest) if length < 0 else length - len(taken)
            taken += self._rest[:wanted]
            self._rest = self._rest[wanted:]
        return bytes(taken)


class _Failures:
    """Turns boto3's exceptions in a block into our errors, without credentials."""

    def __init__(self, path: str, operation: str) -> None:
        self._path = path
        self._operation = operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        if isinstance(error, ClientError):
            if _code(error) in _MISSING:
                raise NotStored(self._path) from error
            said = error.response.get("Error", {})
            raise StoreFailed(self._path, self._operation, f"{_code(error)}: {said.get('Message', '')}") from error
        # While a body is read, botocore passes on errors of TLS as they are.
        if isinstance(error, BotoCoreError | Boto3Error | HTTPError):
            raise StoreFailed(self._path, self._operation, _SECRET_IN_URL.sub("//", str(error))) from error
        if isinstance(error, OSError) and self._operation != _WRITING:  # a file with credentials; else of the log
            raise StoreFailed(self._path, self._operation, str(error)) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
