"""A `BrokerContext` for tests of one service: it has the attributes that the test gives; any other access fails."""

from types import SimpleNamespace
from typing import Any, cast

from mq.broker.base.archive_tier import Tier
from mq.broker.context import BrokerContext
from mq.broker.limits import DEFAULT
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.log_beginning import LogBeginning
from mq.broker.state.archived_log import ArchivedLog
from raftlog import Beginning, NodeId


class _Whole:
    def beginning(self) -> tuple[Beginning, NodeId | None]:
        return Beginning.FIRST, None


def context_of(**given: Any) -> BrokerContext:
    """A context with these attributes, the limits of production, and a log that has its beginning.

    A double underscore stands for a dot: ``reads__read=f`` is ``context.reads.read``.
    """
    root = SimpleNamespace(beginning=LogBeginning(_Whole()), limits=DEFAULT, clients=ClientRegistry())
    for path, value in given.items():
        at = root
        *outer, last = path.split("__")
        for name in outer:
            if not hasattr(at, name):
                setattr(at, name, SimpleNamespace())
            at = getattr(at, name)
        setattr(at, last, value)
    if (log := getattr(getattr(root, "replica", None), "log", None)) is not None:  # no archive
        for name, value in {"records": log, "archived": None, "tiered": None}.items():
            setattr(root, name, getattr(root, name, value))
        root.tier = getattr(root, "tier", None) or Tier(url=None, log=log, state=ArchivedLog())
    return cast("BrokerContext", root)
