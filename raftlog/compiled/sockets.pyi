from collections.abc import Sequence

from raftlog.net.flush import Flushable, SocketCalls

COMPILED_FROM: str

def send_single_buffers(streams: Sequence[Flushable], calls: SocketCalls | None = None) -> Sequence[Flushable]: ...
