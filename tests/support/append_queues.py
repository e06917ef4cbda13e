"""Both forms of a log writer's queue, as parameters of tests."""

from __future__ import annotations

from typing import Final

import pytest

from raftlog.compiled.loaded import IS_COMPILED, CompiledAppendQueue
from raftlog.segment.append_queue import PythonAppendQueue

needs_compiled = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

FORMS: Final = [
    pytest.param(CompiledAppendQueue, id="compiled", marks=needs_compiled),
    pytest.param(PythonAppendQueue, id="python"),
]
