from collections.abc import Callable, Mapping, Sequence

from mq.broker.net.connection import ClientConnection
from mq.broker.produce.send_receiver import KnownNumbers, ReceiveInto, UnservedFrames
from mq.broker.write_path.entry_builder import EntryDraft, PendingItem
from mq.broker.write_path.outcome import DiskFull, LeadershipLost
from mq.broker.write_path.queue_tails import QueueTail
from raftlog import Ready

COMPILED_FROM: str

def use_sha1_of(library: str) -> bool: ...

class SendBlock:
    @property
    def senders(self) -> list[tuple[ClientConnection, bytes, int]]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def request_count(self) -> int: ...
    @property
    def sender_count(self) -> int: ...
    def build(self, draft: EntryDraft) -> None: ...
    def give_back(self, outcome: DiskFull | LeadershipLost) -> None: ...

class CompiledReceiver:
    def __init__(
        self,
        *,
        is_signed: bool,
        receive_into: ReceiveInto | None,
        writable: dict[str, list[QueueTail]],
        tag_codes: Mapping[bytes, int],
        suffix: bytes,
        store_host: bytes,
        reply_parts: Sequence[bytes],
        numbered_batch: bytes,
        known: KnownNumbers,
        body_bytes_max: int,
        block_bytes_max: int,
        broker_name: bytes,
        give_back: Callable[[ClientConnection, bytes, DiskFull | LeadershipLost], None],
    ) -> None: ...
    @property
    def fast_senders(self) -> frozenset[int]: ...
    @property
    def compiled_messages(self) -> int: ...
    def receive(self, ready: Ready, room: int) -> tuple[list[PendingItem], UnservedFrames, Ready]: ...
    def take(self, sender: ClientConnection, chunk: bytes, room: int) -> tuple[list[PendingItem], int]: ...
    def forget(self, descriptor: int) -> None: ...
