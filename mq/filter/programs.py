"""Names of filter programs, on the wire and in the replicated state."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from mq.protocol.errors import ProtocolError

Kind = Literal["wasm", "sql", "java"]
OnError = Literal["pass", "skip"]

PROGRAM_BYTES_MAX: Final = 1024 * 1024
CLASS_FILTER: Final = 8
"""Says in the system flag of a pull that its subscription is the name of a program."""

_ALL_TAGS: Final = "*"
_NAME: Final = re.compile(r"(?P<kind>wasm|sql|java):(?P<sha256>[0-9a-f]{64})(?P<skip>:skip)?")


class ProgramInvalid(ProtocolError):
    """A filter program, or its name, cannot be used. The message says why."""


class ProgramName(NamedTuple):
    """The identity of a filter program: its kind, and the SHA-256 of its bytes.

    Attributes:
        on_error: whether a message at which the program fails is passed on to the consumer or skipped.
    """

    kind: Kind
    sha256: str
    on_error: OnError = "pass"

    @property
    def text(self) -> str:
        """The name as text, on the wire and in the replicated state."""
        return f"{self.kind}:{self.sha256}" + (":skip" if self.on_error == "skip" else "")

    def is_of(self, content: bytes) -> bool:
        """Whether the program has these bytes."""
        return _sha256(content) == self.sha256


def _sha256(content: bytes) -> str:
    import hashlib  # here: with OpenSSL's part it takes half a megabyte of a client's memory

    return hashlib.sha256(content).hexdigest()


def name_of(kind: Kind, content: bytes, on_error: OnError = "pass") -> ProgramName:
    """Return the name of a program with these bytes. Raises ProgramInvalid if there are none or too many."""
    if not 0 < len(content) <= PROGRAM_BYTES_MAX:
        raise ProgramInvalid(f"the filter program has {len(content)} bytes; allowed: 1 to {PROGRAM_BYTES_MAX}")
    return ProgramName(kind, _sha256(content), on_error)


def filtered_expression(name: ProgramName, tags: str) -> str:
    """Return the subscription for pulls from a filter server: the program, and after a space the tags unless all."""
    return name.text if tags == _ALL_TAGS else f"{name.text} {tags}"


def parse_filtered_expression(text: str) -> tuple[ProgramName, str]:
    """Parse the result of `filtered_expression`. Raises ProgramInvalid."""
    name, _, tags = text.partition(" ")
    return parse_program_name(name), tags or _ALL_TAGS


def is_program_name(text: str) -> bool:
    """Whether the text is the name of a program, not of a Java class."""
    return _NAME.fullmatch(text) is not None


def parse_program_name(text: str) -> ProgramName:
    """Parse the name of a filter program. Raises ProgramInvalid."""
    name_match = _NAME.fullmatch(text)
    if name_match is None:
        raise ProgramInvalid(f"{text[:80]!r} is not the name of a filter program: KIND:SHA-256, or KIND:SHA-256:skip")
    kind: Kind
    match name_match["kind"]:
        case "wasm":
            kind = "wasm"
        case "sql":
            kind = "sql"
        case _:
            kind = "java"
    return ProgramName(kind, name_match["sha256"], "skip" if name_match["skip"] else "pass")
