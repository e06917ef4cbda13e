"""What the SDK writes into Python's logging."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import structlog

from mq.client.logs import log


def fail(secret: str) -> None:
    try:
        raise LookupError("no such address")
    except LookupError:
        log.exception("handler_failed", attempt=1)


@pytest.mark.parametrize("configured", [False, True])
def test_failure_is_logged_once_and_without_variables(
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


def test_client_log_respects_the_level(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structlog, "is_configured", lambda: False)  # whatever ran before in this process
    with caplog.at_level(logging.WARNING, "mq.client"):
        log.info("connected")
    assert not caplog.records
    with caplog.at_level(logging.INFO, "mq.client"):
        log.info("connected", address="a:1")
    assert [record.getMessage() for record in caplog.records] == ["connected address='a:1'"]


def test_importing_the_sdk_does_not_import_structlog() -> None:
    code = "import sys, mq.client; sys.exit('structlog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_application_may_drop_events_and_render_them_for_logging(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_refusals(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if event["event"] == "refused":
            raise structlog.DropEvent
        return event

    monkeypatch.setattr(structlog, "is_configured", lambda: True)
    for last, text in (
        (structlog.stdlib.render_to_log_kwargs, "moved 50%"),
        (structlog.stdlib.render_to_log_args_and_kwargs, "moved 50%"),
        (structlog.processors.KeyValueRenderer(), "offset=3 event='moved 50%'"),
    ):
        monkeypatch.setattr(structlog, "get_config", lambda last=last: {"processors": [without_refusals, last]})
        caplog.clear()
        log.warning("refused")
        log.warning("moved 50%", offset=3)
        assert [record.getMessage() for record in caplog.records] == [text]
