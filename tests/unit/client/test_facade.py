"""`raftmq` is `mq.client` by another name."""

from __future__ import annotations

import sys

import mq.client
import mq.client.sync
import raftmq
import raftmq.sync


def test_facade_has_every_name_of_the_client() -> None:
    assert sorted(raftmq.__all__) == sorted(mq.client.__all__)
    assert all(getattr(raftmq, name) is getattr(mq.client, name) for name in raftmq.__all__)
    assert sorted(raftmq.sync.__all__) == sorted(mq.client.sync.__all__)
    assert all(getattr(raftmq.sync, name) is getattr(mq.client.sync, name) for name in raftmq.sync.__all__)


def test_facade_teaches_no_other_names() -> None:
    modules = {name.removeprefix("raftmq.") for name in sys.modules if name.startswith("raftmq.")}
    public = {name for name in vars(raftmq) if not name.startswith("_")}
    assert public - set(raftmq.__all__) - modules <= {"mq"}
