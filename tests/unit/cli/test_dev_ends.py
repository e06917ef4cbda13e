"""`raftmq dev` says which of its servers ended."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import trio
from rich.console import Console

from mq.cli.dev import _say_who_ends
from mq.local_cluster import DevCluster


class SomeServers:
    """A group whose servers end when the test says so."""

    group = "broker-a"
    node_ids = ("n0", "n1", "n2")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def ended(self) -> dict[str, int]:
        return self.codes

    def log_path(self, name: str) -> Path:
        return Path("logs") / f"{name}.log"


async def test_server_that_ends_is_named_once(autojump_clock: Any) -> None:
    """A killed replica went unnoticed until the user asked for the status."""
    servers, out = SomeServers(), io.StringIO()
    async with trio.open_nursery() as nursery:
        clusters = [cast("DevCluster", servers)]
        nursery.start_soon(_say_who_ends, Path("data"), clusters, Console(file=out, soft_wrap=True))
        await trio.sleep(10)
        assert not out.getvalue()
        servers.codes["n1"] = -9
        await trio.sleep(10)
        servers.codes["n2"] = 1
        await trio.sleep(10)
        del servers.codes["n1"]  # it was restarted
        await trio.sleep(10)
        servers.codes |= {"n1": -9, "proxy": 1}
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    first, second, again, proxy = out.getvalue().splitlines()
    assert first == again
    assert first.endswith("To start it again: raftmq dev --dir data --restart n1")
    assert proxy.endswith("To start it again: stop raftmq dev with ctrl-C and start it again")
    assert first.startswith("n1 was killed by signal 9; its log is logs/n1.log")
    assert second.startswith("n2 ended with exit code 1; its log is logs/n2.log")
