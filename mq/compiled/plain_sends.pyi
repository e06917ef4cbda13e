from collections.abc import Callable, Mapping, Sequence
from typing import Any

COMPILED_FROM: str

def use_sha1_of(library: str) -> bool: ...

class SendBlock:
    @property
    def senders(self) -> list[tuple[Any, bytes, int]]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def request_count(self) -> int: ...
    def build(
        self, position: int, store_ms: int, touched: list[Any], replies: list[tuple[Any, list[bytes]]]
    ) -> bytes: ...

class PlainSends:
    def __init__(
        self,
        *,
        writable: dict[str, Any],
        tag_codes: Mapping[bytes, int],
        suffix: bytes,
        store_host: bytes,
        reply_parts: Sequence[bytes],
        magic: int,
        client_flags: int,
        body_bytes_max: int,
        properties_bytes_max: int,
        block_bytes_max: int,
        broker_name: bytes,
    ) -> None: ...
    def take(
        self,
        chunk: bytes,
        start: int,
        room: int,
        connection: Any,
        host: bytes,
        key_of: Callable[[bytes, bytes], bytes | None] | None = None,
    ) -> tuple[SendBlock | None, int]: ...

class ReadySenders:
    def __init__(self, plain_sends: PlainSends, senders: dict[int, Any], *, is_signed: bool) -> None: ...
    def receive(
        self, ready: list[tuple[int, int]], room: int
    ) -> tuple[list[SendBlock], list[tuple[int, Any, bytes]], list[tuple[int, int]]]: ...
