"""Warns in `raftmq dev` of a nearly full disk, which all of its replicas share and at which they refuse messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import trio

from mq.broker.base.disk import disk_usage, used_part
from mq.local_cluster import ServersFailed

WATCH_SECONDS = 5.0
_RATIO_MAX = 0.99
_ROOM = 0.02


class DiskRatios(Protocol):
    """The limits of disk use in a broker's settings; see `BrokerSettings`."""

    @property
    def disk_expire_ratio(self) -> float: ...
    @property
    def disk_full_ratio(self) -> float: ...
    @property
    def disk_pause_ratio(self) -> float: ...


class DiskState(IntEnum):
    """The state of a disk, by how brokers react to it."""

    ROOM = 0
    DELETES = 1
    """Brokers delete old messages before their retention time."""
    REFUSES = 2
    """Brokers refuse messages."""
    PAUSES = 3
    """Followers accept no entries: nothing is committed, and no new leader can serve."""


def state_of(used: float, ratios: DiskRatios) -> DiskState:
    """Return the state of a disk of which the fraction ``used`` is used."""
    if used >= ratios.disk_pause_ratio:
        return DiskState.PAUSES
    if used >= ratios.disk_full_ratio:
        return DiskState.REFUSES
    return DiskState.DELETES if used >= ratios.disk_expire_ratio else DiskState.ROOM


def disk_text(directory: Path, usage: tuple[int, int], ratios: DiskRatios) -> str:
    """Say how brokers react to this use of the disk (free and total bytes), and what helps."""
    free, total = usage
    used = used_part(free, total)
    text = f"the disk of {directory} is {math.floor(used * 100)} % full, with {free / 1e9:,.1f} GB free: "
    match state_of(used, ratios):
        case DiskState.ROOM:
            return text + f"brokers accept messages until it is {_percent(ratios.disk_full_ratio)} full"
        case DiskState.DELETES:
            return text + (
                f"above {_percent(ratios.disk_expire_ratio)} (disk_expire_ratio), brokers delete old messages before "
                f"their retention time, and above {_percent(ratios.disk_full_ratio)} (disk_full_ratio), they refuse "
                "messages"
            )
        case DiskState.REFUSES:
            text += f"above {_percent(ratios.disk_full_ratio)} (disk_full_ratio), brokers refuse messages"
        case DiskState.PAUSES:
            text += f"above {_percent(ratios.disk_pause_ratio)}, brokers store nothing, and no leader can serve"
    higher = math.ceil((used + _ROOM) * 100) / 100
    option = "" if higher > _RATIO_MAX else f", or allow more with --set disk_full_ratio={higher:.2f}"
    return f"{text}. Free some space, use --dir for another disk{option}"


def check_disk(
    directory: Path, ratios: DiskRatios, *, is_new: bool, usage: Callable[[Path], tuple[int, int]] = disk_usage
) -> str | None:
    """Return a warning to show before brokers start in a directory; None if there is enough room.

    ``is_new``: nothing is stored there, so that brokers would have to store something at once.

    Raises:
        ServersFailed: brokers would start, and then no client could do anything.
        OSError: the use of the disk is unknown.
    """
    there = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    free, total = usage(there)
    state = state_of(used_part(free, total), ratios)
    if state == DiskState.ROOM:
        return None
    text = disk_text(directory, (free, total), ratios)
    if state == DiskState.PAUSES or (is_new and state == DiskState.REFUSES):
        raise ServersFailed(text)
    return text


async def watch_disk(directory: Path, ratios: DiskRatios, say: Callable[[str], None]) -> None:
    """Report how brokers react to the use of the disk, whenever that changes. Runs until cancelled."""
    last = None
    while True:
        usage = disk_usage(directory)
        state = state_of(used_part(*usage), ratios)
        if last not in (None, state):
            say(disk_text(directory, usage, ratios))
        last = state
        await trio.sleep(WATCH_SECONDS)


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.3g} %"
