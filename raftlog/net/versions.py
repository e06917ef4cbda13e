"""The replication protocol version of a connection, and what replicas report about their software. Pure.

In the handshake, which is the same in all versions, both sides report the range of versions that they support. A
connection uses the newest common one. So replicas of two releases work together during a rolling upgrade.

An application may have *format levels*: from a level on, entries contain what older software does not understand. Each
replica reports the highest level that it supports, and the group's level as far as it knows. Two replicas do not
connect if one of them could not understand the other's log.
"""

from __future__ import annotations

from typing import Final

import msgspec

HANDSHAKE_VERSION: Final = 3
"""The version of all frames up to the welcome, whatever version follows."""
OLDEST_VERSION: Final = 3
NEWEST_VERSION: Final = 3
VERSION_MAX: Final = 255
LEVEL_MAX: Final = 2**31 - 1
SOFTWARE_CHARS_MAX: Final = 64


class Software(msgspec.Struct, frozen=True):
    """A replica's report about itself. The defaults are for replicas without a report.

    ``version`` is the software's, for people. The other fields are numbers, see the module: replication versions
    from ``oldest`` to ``newest``; the group's current ``level``, and the highest supported one, ``level_newest``.
    """

    version: str = ""
    oldest: int = HANDSHAKE_VERSION
    newest: int = HANDSHAKE_VERSION
    level: int = 1
    level_newest: int = 1


UNKNOWN_SOFTWARE: Final = Software()


def common_version(ours: Software, theirs: Software) -> int | None:
    """Return the newest replication version that both support; None without one."""
    newest = min(ours.newest, theirs.newest)
    return newest if newest >= max(ours.oldest, theirs.oldest) else None


def why_apart(ours: Software, theirs: Software, node: str) -> str | None:
    """Return the reason not to connect to ``node``, as text with both versions; None to connect."""
    if (refusal := _why_implausible(theirs)) is not None:
        return refusal
    if common_version(ours, theirs) is None:
        return (
            f"replication versions {_span(ours.oldest, ours.newest)} are supported here, "
            f"{_span(theirs.oldest, theirs.newest)} by {node!r}"
        )
    if theirs.level_newest < ours.level:
        return f"the group is at format level {ours.level}, {node!r} supports none above {theirs.level_newest}"
    if theirs.level > ours.level_newest:
        return (
            f"the group is at format level {theirs.level} as {node!r} knows, "
            f"this replica supports none above {ours.level_newest}"
        )
    return None


def _span(oldest: int, newest: int) -> str:
    return f"{oldest} to {newest}"


def _why_implausible(software: Software) -> str | None:
    if not 0 < software.oldest <= software.newest <= VERSION_MAX:
        return f"replication versions {software.oldest} to {software.newest} are none"
    if not 0 < software.level <= LEVEL_MAX or not 0 < software.level_newest <= LEVEL_MAX:
        return f"format levels {software.level} and {software.level_newest} are none"
    if len(software.version) > SOFTWARE_CHARS_MAX or not software.version.isprintable():
        return f"a version of the software is printable and has at most {SOFTWARE_CHARS_MAX} characters"
    return None
