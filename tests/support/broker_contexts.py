"""A `BrokerContext` for tests of one service: it has the attributes that the test gives; any other access fails."""

from types import SimpleNamespace
from typing import Any, cast

from mq.broker.context import BrokerContext


def context_of(**given: Any) -> BrokerContext:
    """A context with these attributes. A double underscore stands for a dot: ``reads__read=f`` is
    ``context.reads.read``.
    """
    root = SimpleNamespace()
    for path, value in given.items():
        at = root
        *outer, last = path.split("__")
        for name in outer:
            if not hasattr(at, name):
                setattr(at, name, SimpleNamespace())
            at = getattr(at, name)
        setattr(at, last, value)
    return cast("BrokerContext", root)
