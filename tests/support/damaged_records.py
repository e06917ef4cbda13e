"""Damaged records in a closed log file of a broker."""

from __future__ import annotations

from pathlib import Path

from tests.support.running_broker import SEGMENT_BYTES, Answer, Client, properties

FIELDS = ("property", "key", "body", "topic", "header")
_BODY_AT = 88
"""Where the body begins in a record with IPv4 hosts."""
_FLAG_AT = 19


def body_of(name: str) -> bytes:
    return b"body of " + name.encode()


def named(name: str, **more: str) -> dict[str, str]:
    return {"KEYS": f"key-of-{name}", "own": f"value-of-{name}"} | more


class File:
    """The first file of a broker's log, which is closed."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "commitlog" / f"{0:020d}"
        self._whole = self.path.read_bytes()

    def flip(self, name: str, field: str) -> None:
        """Flip a bit of the first record with the body of ``name``."""
        content, body = self._whole, body_of(name)
        begin = content.index(body) - _BODY_AT
        behind = begin + _BODY_AT + len(body)
        match field:
            case "property":
                at = content.index(f"value-of-{name}".encode(), behind)
            case "key":
                at = content.index(f"key-of-{name}".encode(), behind)
            case "body":
                at = begin + _BODY_AT + 3
            case "topic":
                at = behind + 1
            case _:
                at = begin + _FLAG_AT
        self.write(at, bytes([content[at] ^ 1]))

    def write(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def restore(self) -> None:
        """Restore the file, as a repair does."""
        self.write(0, self._whole)


async def close_the_first_file(client: Client) -> None:
    for _ in range(SEGMENT_BYTES // 4_000_000 + 1):
        assert (await client.send("Filler", bytes(4_000_000))).code == 0


async def send(client: Client, topic: str, name: str, **more: str) -> Answer:
    answer = await client.send(topic, body_of(name), i=properties(**named(name, **more)))
    assert answer.code == 0, answer
    return answer
