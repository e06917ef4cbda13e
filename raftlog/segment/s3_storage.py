"""Stores a backup in a bucket of Amazon S3, or of compatible object storage.

boto3 does the work: it finds credentials in the usual places, signs, and retries. It is imported when a bucket is used,
since it is an optional dependency.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
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
from raftlog.segment.ranges_ahead import RangesAhead
from raftlog.segment.s3_upload import Uploads

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

SCHEME: Final = "s3://"
COPY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Bytes that one request copies at most; larger objects are copied in parts."""
READ_BYTES: Final = 16 * 1024 * 1024
"""Minimum size of a read request for an object of which an unknown part will be read."""
READ_ATTEMPTS: Final = 3
"""boto3 retries requests, but not after the content of an answer has begun to arrive."""
MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024
CONNECT_SECONDS: Final = 10
RENEW_SECONDS: Final = 10.0
"""Credentials that were refused are looked for again at most this often: that costs some hundredths of a second."""
_WRITING: Final = "writing it"

_URL = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(.*))?", re.DOTALL)
SECRET_IN_URL: Final = "credentials do not belong into it: use AWS_ACCESS_KEY_ID, or a profile"  # noqa: S105 - a reason
NO_BUCKET: Final = "is not s3://BUCKET/PREFIX"
_MISSING = frozenset(("NoSuchKey", "404", "NotFound"))
_CONFLICTS = frozenset(("PreconditionFailed", "ConditionalRequestConflict", "412"))
_CREDENTIALS = frozenset(
    (
        "AccessDenied",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    )
)
_RENEW: Final = "renew the credentials; those in files are read again"
_MAKE_ROOM: Final = "make room in the store, or raise its quota"
_REMEDIES: Final = {
    "507": _MAKE_ROOM,
    "ExpiredToken": _RENEW,
    "ExpiredTokenException": _RENEW,
    "InsufficientStorage": _MAKE_ROOM,
    "QuotaExceeded": _MAKE_ROOM,
    "RequestTimeTooSkewed": "set the clock of this machine, or that of the store",
    "ServiceQuotaExceeded": _MAKE_ROOM,
    "ServiceQuotaExceededException": _MAKE_ROOM,
    "TokenRefreshRequired": _RENEW,
    "XMinioAdminBucketQuotaExceeded": _MAKE_ROOM,
    "XMinioStorageFull": _MAKE_ROOM,
}
_SECRET_IN_URL = re.compile(r"//[^/@\s\"']+@")


class S3Store:
    """Stores a backup as objects below a prefix of an S3 bucket. Use `open_s3`.

    A bucket has no locks. Concurrent runs do not harm each other, since no object is written twice except the manifest.
    That is replaced only if it is still the one that was loaded, so the later run is refused.
    """

    def __init__(self, open_client: Callable[[bool], Any], bucket: str, prefix: str) -> None:
        """``prefix`` is empty or ends with a slash. ``open_client`` makes a client of boto3, with the credentials that
        there are then; with True one that sends each request once.
        """
        self.name = f"{SCHEME}{bucket}/{prefix}".rstrip("/")
        self._open_client = open_client
        self._current_client = open_client(False)
        self._opened_at = monotonic()
        self._is_refused = False
        """The credentials were: perhaps there are new ones by now."""
        self._client_lock = threading.Lock()
        self._bucket = bucket
        self._prefix = prefix
        self._etag: str | None = None
        self._uploads = Uploads(partial(open_client, True), bucket)
        self._block: tuple[str, int, bytes, bool] = ("", 0, b"", False)
        """Object, offset, content, and whether the object ends with it."""
        self._ahead: RangesAhead | None = None

    def below(self, folder: str) -> S3Store:
        """The objects in a folder, over the same connections, which are closed with either of the two."""
        assert not f"{folder}/".endswith("//"), folder
        clients = [self._client]

        def open_client(is_impatient: bool) -> Any:
            return clients.pop() if clients and not is_impatient else self._open_client(is_impatient)

        return S3Store(open_client, self._bucket, f"{self._prefix}{folder}/")

    def path(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.name}/{name}"

    def begin_writing(self) -> None:
        """Do nothing: an object store has nothing to create or lock."""

    def names(self, folder: str = "") -> Iterator[str]:
        """List the names, a thousand at a time."""
        prefix = self._prefix + (folder and f"{folder}/")
        with self._failures(f"{self.name}/{folder}", "listing it"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, Delimiter="/"
            )
            for page in pages:
                for each in page.get("CommonPrefixes", ()):
                    yield each["Prefix"][len(prefix) :].rstrip("/")
                for each in page.get("Contents", ()):
                    if name := each["Key"][len(prefix) :]:  # a folder created in a console has an object, too
                        yield name

    def will_read(self, objects: Sequence[tuple[str, int]]) -> None:
        """Request ranges of these objects before they are read."""
        self._read_nothing_ahead()
        self._ahead = RangesAhead(self._read_range, objects)

    def read(self, name: str, length: int, offset: int) -> bytes:
        """Return ``length`` bytes from ``offset``, fewer at the end of the object. Keeps more for later calls."""
        if self._ahead is not None and name not in self._ahead.names:
            return self._read_range(name, length, offset)
        block_name, start, block, is_end = self._block
        if block_name != name or not start <= offset <= start + len(block):
            start, block, is_end = offset, b"", False
        while not is_end and offset + length > start + len(block):
            more, is_end = self._read_more(name, start + len(block), length)
            start, block = offset, block[offset - start :] + more
        self._block = (name, start, block, is_end)
        return block[offset - start : offset - start + length]

    def _read_more(self, name: str, offset: int, length: int) -> tuple[bytes, bool]:
        """Read ``length`` bytes or more of an object; also returns whether the object ends there."""
        if self._ahead is not None:
            if (ahead := self._ahead.take(name, offset)) is not None:
                return ahead
            self._read_nothing_ahead()
        nbytes = max(length, READ_BYTES)
        data = self._read_range(name, nbytes, offset)
        return data, len(data) < nbytes

    def _read_nothing_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def load_manifest(self) -> bytes | None:
        """Load the manifest, and remember its version for `replace_manifest`."""
        path = self.path(MANIFEST_NAME)
        try:
            with self._failures(path, "reading it"):
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + MANIFEST_NAME)
                content: bytes = response["Body"].read(MANIFEST_BYTES_MAX + 1)
        except NotStored:
            self._etag = None
            return None
        if len(content) > MANIFEST_BYTES_MAX:
            raise BackupDamaged(path, f"it has more than {MANIFEST_BYTES_MAX} bytes")
        self._etag = response["ETag"]
        return content

    def replace_manifest(self, content: bytes) -> None:
        """Replace the manifest by a conditional write."""
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if self._etag is None else {"IfMatch": self._etag}
        path = self.path(MANIFEST_NAME)
        try:
            with self._failures(path, _WRITING):
                try:
                    response = self._client.put_object(
                        Bucket=self._bucket,
                        Key=self._prefix + MANIFEST_NAME,
                        Body=content,
                        ContentType="application/json",
                        **condition,
                    )
                    self._etag = response["ETag"]
                except ClientError as error:
                    if _code(error) not in _CONFLICTS:
                        raise
                    raise NotStored(path) from error
        except NotStored as error:
            if self.load_manifest() != content:  # equal if the answer to the first attempt was lost
                raise ManifestChanged(
                    self.name, "another run has changed this backup meanwhile; the result of this run was discarded"
                ) from error

    def check_conditions(self) -> None:
        """Refuse a store that ignores the conditions of writes: with two writers, it would lose a manifest.

        Raises:
            BackupRefused: it ignores them. Also `StoreFailed`.
        """
        from botocore.exceptions import ClientError

        path = self.path(CONDITIONS_NAME)
        with self._failures(path, _WRITING):
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

    def write(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Write an object, in parts if it is large."""
        with self._failures(self.path(name), _WRITING):
            return self._uploads.put(self._client, self._prefix + name, pieces)

    def create(self, name: str, content: bytes) -> bool:
        """Store a small object, by a conditional write; False if there is one of this name with other content.

        One with this content counts as stored by this call: the answer to it may have been lost.
        """
        from botocore.exceptions import ClientError

        path = self.path(name)
        for _ in range(READ_ATTEMPTS):
            try:
                with self._failures(path, _WRITING):
                    try:
                        self._client.put_object(
                            Bucket=self._bucket, Key=self._prefix + name, Body=content, IfNoneMatch="*"
                        )
                    except ClientError as error:
                        if _code(error) not in _CONFLICTS:
                            raise
                        return self._read_range(name, len(content) + 1, 0) == content
                    return True
            except NotStored:
                continue  # the conflict was with a write that is not finished, or failed
        raise StoreFailed(path, _WRITING, "other processes replace it before each attempt")

    def copy(self, source: S3Store, name: str, target: str) -> None:
        """Store an object of another prefix of the same bucket under another name; whole or not at all.

        Raises NotStored: there is no such object. The store does it, without sending the content here.
        """
        from boto3.s3.transfer import TransferConfig

        assert source._bucket == self._bucket, "a copy within a bucket"
        config = TransferConfig(multipart_threshold=COPY_BYTES_MAX, multipart_chunksize=COPY_BYTES_MAX)
        with self._failures(source.path(name), f"copying it to {self.path(target)}"):
            copy_source = {"Bucket": source._bucket, "Key": source._prefix + name}
            self._client.copy(copy_source, self._bucket, self._prefix + target, Config=config)

    def names_below(self, folder: str = "") -> Iterator[str]:
        """The names of all objects in a folder and in its subfolders, relative to it; a thousand per request."""
        prefix = self._prefix + (folder and f"{folder}/")
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        with self._failures(f"{self.name}/{folder}", "listing it"):
            for page in pages:
                for each in page.get("Contents", ()):
                    if name := each["Key"][len(prefix) :]:
                        yield name

    def remove(self, name: str) -> None:
        """Remove an object with one request."""
        with self._failures(self.path(name), "removing it"):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def free_bytes(self) -> int | None:
        """Return None: the free bytes of a bucket are unknown."""
        return None

    def close(self) -> None:
        """Close its connections."""
        self._read_nothing_ahead()
        self._current_client.close()

    def read_range(self, name: str, length: int, offset: int) -> bytes:
        """Read exactly these bytes with one request; fewer only at the end. Any thread may call this at any time."""
        return self._read_range(name, length, offset)

    def _read_range(self, name: str, length: int, offset: int) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        with self._failures(self.path(name), "reading it"):
            for attempt in range(1, READ_ATTEMPTS + 1):
                try:
                    response = self._client.get_object(
                        Bucket=self._bucket,
                        Key=self._prefix + name,
                        Range=f"bytes={offset}-{offset + length - 1}",
                    )
                except ClientError as error:
                    if _code(error) in ("InvalidRange", "416"):
                        return b""
                    raise
                try:
                    content: bytes = response["Body"].read()
                    return content
                except (BotoCoreError, HTTPError):
                    if attempt == READ_ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    @property
    def _client(self) -> Any:
        """The client; a new one after the credentials were refused, since renewed ones are in a file."""
        with self._client_lock:
            if self._is_refused and monotonic() >= self._opened_at + RENEW_SECONDS:
                self._current_client = self._open_client(False)
                self._opened_at, self._is_refused = monotonic(), False
            return self._current_client

    def _failures(self, path: str, operation: str) -> _Failures:
        return _Failures(path, operation, self._on_refusal)

    def _on_refusal(self) -> None:
        self._is_refused = True


def has_secret(url: str) -> bool:
    """Whether a URL has credentials in it."""
    return _SECRET_IN_URL.search(url) is not None


def why_no_bucket(url: str) -> str | None:
    """Return the reason that `open_s3` refuses a URL; None if it accepts it."""
    if has_secret(url):
        return SECRET_IN_URL
    return NO_BUCKET if _URL.fullmatch(url) is None else None


def open_s3(url: str, endpoint_url: str | None = None, *, answer_seconds: float | None = None) -> S3Store:
    """Return a store for ``s3://BUCKET/PREFIX``. Sends no request yet.

    Args:
        endpoint_url: of another service than Amazon's; default: from the environment or the profile.
        answer_seconds: a request fails when nothing came for so long, and is repeated once; default: as boto3 has it.

    Raises:
        BackupRefused: the URL is invalid, or boto3 is not installed.
        StoreFailed: the configuration of boto3 is wrong.
    """
    if has_secret(url) or (endpoint_url and has_secret(endpoint_url)):
        raise BackupRefused("the URL of a backup", SECRET_IN_URL)
    if (match := _URL.fullmatch(url)) is None:
        raise BackupRefused(url, NO_BUCKET)
    try:
        from boto3.session import Session
        from botocore.config import Config
        from botocore.session import get_session
    except ImportError as error:
        raise BackupRefused(url, "this needs boto3: pip install 'raftmq[s3]'") from error
    bucket, prefix = match[1], (match[2] or "").strip("/")
    # What is read is verified against the manifest and the chain of the log. Some services name the checksum of the
    # whole object when a range of it is read, and boto3 would refuse that.
    config = Config(connect_timeout=CONNECT_SECONDS, response_checksum_validation="when_required")
    if answer_seconds is not None:
        hasty = Config(connect_timeout=answer_seconds, read_timeout=answer_seconds, retries={"total_max_attempts": 2})
        config = config.merge(hasty)

    sessions: list[tuple[Any, Any]] = []

    def open_client(is_impatient: bool) -> Any:
        if not is_impatient or not sessions:
            core = get_session()  # a new one reads files with credentials again
            options = config
            if _is_checksum_enough(core):
                options = config.merge(Config(s3={"payload_signing_enabled": False}))
            sessions[:] = [(Session(botocore_session=core), options)]
        session, options = sessions[0]
        if is_impatient:
            options = options.merge(Config(retries={"total_max_attempts": 1}))
        return session.client("s3", endpoint_url=endpoint_url, config=options)

    with _Failures(url, "opening it"):
        try:
            return S3Store(open_client, bucket, prefix and f"{prefix}/")
        except ValueError as error:
            raise StoreFailed(url, "opening it", str(error)) from error


def _is_checksum_enough(session: Any) -> bool:
    """Whether contents are sent with a checksum only, as boto3 does over TLS. Over HTTP, an attacker who could change
    them could as well change the content. Users may ask for signatures, or have a store that knows no checksums.
    """
    is_checked = session.get_config_variable("request_checksum_calculation") == "when_supported"
    return is_checked and "payload_signing_enabled" not in (session.get_scoped_config().get("s3") or {})


class _Failures:
    """Turns boto3's exceptions in a block into our errors, without credentials."""

    def __init__(self, path: str, operation: str, on_refusal: Callable[[], None] = lambda: None) -> None:
        """``on_refusal`` is called if the store refuses the credentials."""
        self._path = path
        self._operation = operation
        self._on_refusal = on_refusal

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        if isinstance(error, ClientError):
            if (code := _code(error)) in _MISSING:
                raise NotStored(self._path) from error
            if code in _CREDENTIALS:
                self._on_refusal()
            details = error.response.get("Error", {})
            remedy = _REMEDIES.get(code, "")
            raise StoreFailed(
                self._path, self._operation, f"{code}: {details.get('Message', '')}{remedy and f' ({remedy})'}"
            ) from error
        # While a body is read, botocore passes on errors of TLS as they are.
        if isinstance(error, BotoCoreError | Boto3Error | HTTPError):
            raise StoreFailed(self._path, self._operation, _SECRET_IN_URL.sub("//", str(error))) from error
        if isinstance(error, OSError) and self._operation != _WRITING:  # a file with credentials; else of the log
            raise StoreFailed(self._path, self._operation, str(error)) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
