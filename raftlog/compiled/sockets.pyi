from collections.abc import Sequence
from typing import Any

COMPILED_FROM: str

def send_single_buffers(streams: Sequence[Any]) -> list[Any]: ...
