"""Reads the file with the secret of a group. Any node that has it can be a replica.

It is text: one secret per line, 64 hexadecimal digits each, newest first. There are two while one replaces the other.
Only its owner may write it, and only its group may read it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Final

from raftlog.net.authentication import SECRET_BYTES, SECRETS_MAX
from raftlog.segment.disk import RealDisk

FILE_NAME: Final = "group.secret"
"""The default name."""

_FORBIDDEN_MODE: Final = 0o037
_FILE_BYTES_MAX: Final = 4096
_ASIDE: Final = ".tmp"


class SecretUnusable(Exception):
    """The group's secret cannot be read. The text names the file and the reason. Nothing was changed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class SecretMissing(SecretUnusable):
    """The secret file does not exist."""


class SecretFile:
    """Reads the group's secrets from a file, also after it changes.

    Attributes:
        current: the valid secrets, newest first; never empty.

    Raises:
        SecretMissing, SecretUnusable: there is no usable secret.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._state = _state_of(path)
        self.current: tuple[bytes, ...] = read_secrets(path)

    def poll(self) -> bool:
        """Read the file again if it was changed; returns whether the secrets changed.

        Raises:
            SecretMissing, SecretUnusable: `current` is unchanged. Raised once for each change of the file.
        """
        if (state := _state_of(self.path)) == self._state:
            return False
        self._state = state
        before, self.current = self.current, read_secrets(self.path)
        return before != self.current


def new_secret() -> bytes:
    """Return a secret for a new group, or to replace one."""
    return os.urandom(SECRET_BYTES)


def read_secrets(path: str) -> tuple[bytes, ...]:
    """Return the secrets in a file, newest first. Raises `SecretMissing` and `SecretUnusable`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            data = os.read(descriptor, _FILE_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise SecretMissing(path, "there is no such file") from None
    except OSError as error:
        raise SecretUnusable(path, error.strerror or str(error)) from error
    if mode & _FORBIDDEN_MODE:
        raise SecretUnusable(path, f"its mode is {mode:04o}, so that others can read or change it: chmod 600 it")
    return parse_secrets(path, data)


def parse_secrets(path: str, data: bytes) -> tuple[bytes, ...]:
    """Return the secrets in a file's content. ``path`` is for the error. Raises `SecretUnusable`."""
    secrets: list[bytes] = []
    for number, line in enumerate(data[:_FILE_BYTES_MAX].split(b"\n"), 1):
        if not (text := line.strip()) or text.startswith(b"#"):
            continue
        try:
            secret = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            secret = b""
        if len(secret) != SECRET_BYTES:
            raise SecretUnusable(path, f"line {number} is not a secret: expected {2 * SECRET_BYTES} hexadecimal digits")
        if secret not in secrets:
            secrets.append(secret)
    if not 0 < len(secrets) <= SECRETS_MAX:
        raise SecretUnusable(path, f"it holds {len(secrets)} secrets, 1 or {SECRETS_MAX} are allowed")
    return tuple(secrets)


def format_secrets(secrets: Sequence[bytes]) -> bytes:
    """Return the content of a file with these secrets."""
    return b"".join(secret.hex().encode() + b"\n" for secret in secrets)


def create_secret(path: str) -> bool:
    """Write a file with a new secret, mode 0600, unless it exists; returns whether it was written.

    It is durable then. An existing file is not touched: it may be mounted read-only.

    Raises OSError; then there is no file, or one from another process.
    """
    if os.path.lexists(path):
        return False
    aside = _written_aside(path, [new_secret()])
    try:
        os.link(aside, path)  # atomically, and never over another file
    except FileExistsError:
        return False
    finally:
        os.unlink(aside)
    _sync_name(path)
    return True


def write_secrets(path: str, secrets: Sequence[bytes]) -> None:
    """Replace the file atomically by one with these secrets, mode 0600. If it raises OSError, it is unchanged."""
    os.rename(_written_aside(path, secrets), path)
    _sync_name(path)


def _written_aside(path: str, secrets: Sequence[bytes]) -> str:
    RealDisk().mkdir(os.path.dirname(path) or ".")
    aside = f"{path}.{os.getpid()}{_ASIDE}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(format_secrets(secrets))
        file.flush()
        os.fsync(file.fileno())
    return aside


def _sync_name(path: str) -> None:
    RealDisk().sync_directory(os.path.dirname(path) or ".")


def _state_of(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
