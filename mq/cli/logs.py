"""Logging of server processes: one line per event on standard error."""

from __future__ import annotations

import logging
import sys

import structlog

from mq.monitoring.event_counts import LOGGED

LEVELS = ("debug", "info", "warning", "error")


def configure_logging(level: str = "info") -> None:
    """Log events of ``level`` and above: coloured on a terminal, one JSON object per line otherwise."""
    on_terminal = sys.stderr.isatty()
    processors: list[structlog.typing.Processor] = [
        LOGGED,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if on_terminal:
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
