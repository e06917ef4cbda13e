"""The SDK's logging: writes to Python's logger ``mq.client``.

A library does not write to its user's terminal by default: as everywhere in Python, warnings show and the rest is
silent until the application configures logging (``logging.basicConfig(level="INFO")``). If the application uses
structlog, its configuration formats events; otherwise an event is a line with its name and fields. structlog is not
imported here: that takes longer than the rest of the SDK, and an application that uses it has imported it already.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any


class EventLog:
    """Writes an event with named fields as one record of a Python logger."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, fields)

    def exception(self, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
        """Log an error with the traceback of an exception, by default the current one, but no values of variables."""
        self._write("error", event, fields, exc_info=error or True)

    def _write(
        self, method: str, event: str, fields: dict[str, Any], *, exc_info: bool | BaseException = False
    ) -> None:
        level = logging.getLevelNamesMapping()[method.upper()]
        if not self._logger.isEnabledFor(level):
            return
        try:
            self._render(level, method, event, fields, exc_info=exc_info)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:  # noqa: ASYNC103 - nothing is awaited here
            # A processor or a filter of the application has failed. Like `logging` with its handlers: the program that
            # logs continues.
            if logging.raiseExceptions and sys.stderr is not None:
                sys.stderr.write(f"the application's logging failed for {event}:\n{traceback.format_exc()}")

    def _render(
        self, level: int, method: str, event: str, fields: dict[str, Any], *, exc_info: bool | BaseException
    ) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is None or not structlog.is_configured():
            text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
            self._logger.log(level, text, exc_info=exc_info)
            return
        event_fields: Any = {**fields, "event": event} | ({"exc_info": exc_info} if exc_info else {})
        try:
            for processor in structlog.get_config()["processors"]:
                event_fields = processor(self._logger, method, event_fields)
        except structlog.DropEvent:
            return
        # A processor may return arguments for the logger's method instead of a text.
        match event_fields:
            case (args, kwargs):
                self._logger.log(level, *args, **kwargs)
            case dict():
                self._logger.log(level, **event_fields)
            case _:
                self._logger.log(level, event_fields)


log = EventLog(logging.getLogger("mq.client"))
