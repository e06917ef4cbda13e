"""What the SDK writes into Python's logging."""

from __future__ import annotations

import logging

import pytest
import structlog

from mq.client.logs import log


def fail(secret: str) -> None:
    try:
        raise LookupError("no such address")
    except LookupError:
        log.exception("handler_failed", attempt=1)


@pytest.mark.parametrize("configured", [False, True])
def test_a_failure_is_told_once_and_without_variables(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    processors = [structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer(key_order=["event"])]
    monkeypatch.setattr(structlog, "is_configured", lambda: configured)
    monkeypatch.setattr(structlog, "get_config", lambda: {"processors": processors})
    fail("body of a message")
    [record] = caplog.records
    text = logging.Formatter().format(record)
    assert (record.name, record.levelname) == ("mq.client", "ERROR")
    assert "handler_failed" in text
    assert "attempt=1" in text
    assert text.count("Traceback") == 1
    assert "body of a message" not in text


def test_what_nobody_wants_to_read_is_not_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structlog, "is_configured", lambda: False)  # whatever ran before in this process
    with caplog.at_level(logging.WARNING, "mq.client"):
        log.info("connected")
    assert not caplog.records
    with caplog.at_level(logging.INFO, "mq.client"):
        log.info("connected", address="a:1")
    assert [record.getMessage() for record in caplog.records] == ["connected address='a:1'"]
