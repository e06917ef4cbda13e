from collections.abc import Sequence

from raftlog.net.flush import Flushed, SocketCalls

COMPILED_FROM: str

def send_single_buffers(streams: Sequence[Flushed], calls: SocketCalls | None = None) -> Sequence[Flushed]: ...
