"""Where the SDK says what happens: Python's own logging, under the name ``mq.client``.

A library does not write to its user's terminal unasked: as everywhere in Python, warnings show and the rest is silent
until the application says otherwise (``logging.basicConfig(level="INFO")``). How an event looks as text is what the
application told structlog, if it uses it; else it is a line with what belongs to it behind it, and a traceback is
logging's own. structlog's default would show the values of variables, and so the bodies of messages.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

__all__ = ["log"]


class _Logger(structlog.stdlib.BoundLogger):
    def exception(self, event: str | None = None, *args: Any, **kw: Any) -> Any:
        # logging's own `exception` would add the traceback to a text that has it already.
        kw.setdefault("exc_info", True)
        return self._proxy_to_logger("error", event, *args, **kw)


def _render(logger: Any, method: str, event: Any) -> Any:
    if structlog.is_configured():
        for processor in structlog.get_config()["processors"]:
            event = processor(logger, method, event)
        return event
    exc_info = event.pop("exc_info", None)
    text = " ".join([event.pop("event"), *(f"{name}={value!r}" for name, value in event.items())])
    return (text,), {"exc_info": exc_info}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("mq.client"), processors=[structlog.stdlib.filter_by_level, _render], wrapper_class=_Logger
)
