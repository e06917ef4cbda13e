"""Brokers with small log files, the oldest of which are dropped."""

from __future__ import annotations

from pathlib import Path

from mq.protocol.codes import RequestCode
from tests.support.running_broker import Client, send_ext
from tests.support.waiting import until

MIB = 1024 * 1024
SMALL_SEGMENT_BYTES = 128 * 1024
SMALL = {
    "segment_bytes": SMALL_SEGMENT_BYTES,
    "message_bytes_max": 32 * 1024,
    "retention_bytes": MIB,
    "retention_check_seconds": 0.02,
    "checkpoint_seconds": 0.02,
}
DISK_EXPIRES = {"disk_warn_ratio": 0.75, "disk_expire_ratio": 0.8}
"""Of tests that say how full the disk is: files go early at 80 %, and what waits goes too at 90 %."""
COUNT = 400


def body(number: int) -> bytes:
    return b"%06d" % number * 1000


async def fill(client: Client, count: int = COUNT, first: int = 0) -> None:
    for start in range(first, first + count, 20):
        frames = [client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(), body(n)) for n in range(start, start + 20)]
        await client.stream.send_all(b"".join(data for _, data in frames))
        for opaque, _ in frames:
            assert (await client.answer(opaque)).code == 0


def log_bytes(log: Path) -> int:
    return len(list(log.glob("0*[0-9]"))) * SMALL_SEGMENT_BYTES


async def shortened(client: Client, log: Path) -> None:
    """Wait until little more than the retention size is left; more may be dropped at any time."""

    async def is_short() -> bool:
        await client.info()
        return log_bytes(log) <= MIB + 3 * SMALL_SEGMENT_BYTES

    await until(is_short)
