"""Both forms of a log writer's queue, as parameters of tests."""

from __future__ import annotations

from typing import Final

import pytest

from raftlog.compiled.loaded import IS_COMPILED, PlainWrites
from raftlog.segment.plain_writes import PythonPlainWrites

needs_compiled = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

FORMS: Final = [
    pytest.param(PlainWrites, id="compiled", marks=needs_compiled),
    pytest.param(PythonPlainWrites, id="python"),
]
