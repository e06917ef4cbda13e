"""The access key and secret key with which clients and brokers sign their requests."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from mq.protocol.codes import RequestCode

if TYPE_CHECKING:
    from mq.protocol.access.signing import Signer

ACCESS_KEY_VARIABLE = "RAFTMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE = "RAFTMQ_SECRET_KEY"  # noqa: S105 - the name of a variable
FILE_VARIABLE = "RAFTMQ_CREDENTIALS"

_SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
"""The bulk of all requests; no other request has their fields."""


class CredentialsInvalid(ValueError):
    """The keys are invalid, or others can read the file with them. Nothing was sent."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret key. The secret key is never shown, logged or sent.

    Raises CredentialsInvalid for keys that no broker accepts.
    """

    access_key: str
    secret_key: str = field(repr=False)
    _signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Here: with hashlib and OpenSSL's part it takes half a megabyte of a client's memory, also without an account.
        from mq.protocol.access.signing import KEY_LENGTH_MIN, Signer

        for name, key in (("access key", self.access_key), ("secret key", self.secret_key)):
            if len(key) < KEY_LENGTH_MIN:
                raise CredentialsInvalid(f"the {name} has {len(key)} characters, at least {KEY_LENGTH_MIN} are needed")
        object.__setattr__(self, "_signer", Signer(self.secret_key))

    def sign(self, code: int, fields: Mapping[str, str] | None, body: bytes) -> dict[str, str]:
        """Return header fields with access key and signature. The signature also covers where fields and body end."""
        from mq.protocol.access.signing import ACCESS_KEY, LENGTHS, SIGNATURE, SIGNED_CODE, lengths

        result = {**(fields or {}), ACCESS_KEY: self.access_key}
        if code not in _SENDS:
            result[SIGNED_CODE] = str(code)
        result[LENGTHS] = lengths(result, body)
        result[SIGNATURE] = self._signer.signature(result, body).decode()
        return result

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Read `access_key` and `secret_key` from a TOML file that only its owner can read.

        Raises CredentialsInvalid, OSError.
        """
        import tomllib  # here, because most clients read no file

        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise CredentialsInvalid(f"{path} can be read by others (mode {mode:03o}): chmod 600 {path}")
            try:
                data = tomllib.load(file)
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise CredentialsInvalid(f"{path} is not TOML: {error}") from error
        try:
            return cls(str(data["access_key"]), str(data["secret_key"]))
        except KeyError as error:
            raise CredentialsInvalid(f"{path} has no {error.args[0]}") from error

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Read `RAFTMQ_ACCESS_KEY` and `RAFTMQ_SECRET_KEY`, or the file in `RAFTMQ_CREDENTIALS`; None if none is set.

        Raises CredentialsInvalid, OSError.
        """
        variables = os.environ if environment is None else environment
        keys = variables.get(ACCESS_KEY_VARIABLE), variables.get(SECRET_KEY_VARIABLE)
        if keys != (None, None):
            if keys[0] is None or keys[1] is None:
                raise CredentialsInvalid(f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} must be set together")
            return cls(keys[0], keys[1])
        path = variables.get(FILE_VARIABLE)
        return None if path is None else cls.from_file(path)
