"""Where the SDK says what happens: Python's own logging, under the name ``mq.client``.

A library does not write to its user's terminal unasked: as everywhere in Python, warnings show and the rest is silent
until the application says otherwise (``logging.basicConfig(level="INFO")``). How an event looks as text is what the
application told structlog, if it uses it.
"""

from __future__ import annotations

import logging

import structlog

__all__ = ["log"]

log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("mq.client"), wrapper_class=structlog.stdlib.BoundLogger
)
