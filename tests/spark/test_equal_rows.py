"""Many rows of every kind of message equal what was sent.

``RAFTMQ_SPARK_ROWS=1000000`` for a million of them; each topic has at most 100,000. ``--log-cli-level=info`` shows how
long it took.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.spark.equal_rows import IPV6, OTHERS, PLAIN, Kind, compare
from tests.spark.stage import Stage

ROWS: Final = int(os.environ.get("RAFTMQ_SPARK_ROWS", "3000"))


@pytest.mark.parametrize("kind", [PLAIN, *OTHERS], ids=lambda kind: kind.name)
def test_rows_equal_the_sent_messages(read: Callable[..., Any], stage: Stage, kind: Kind) -> None:
    compare(read, stage, kind, ROWS * kind.percent // 100)


def test_rows_of_ipv6_clients_equal_the_sent_messages(session: Any, tmp_path: Path) -> None:
    with Stage.open(tmp_path, ipv6=True) as stage:

        def read(**options: str) -> Any:
            return session.read.format("raftmq").options(namesrv=stage.namesrv, **options).load()

        compare(read, stage, IPV6, ROWS * IPV6.percent // 100)
