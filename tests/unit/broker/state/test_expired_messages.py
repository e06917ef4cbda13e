"""Messages that expire before the log deletes them: the attribute and the command."""

from __future__ import annotations

import pytest

from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.expired_messages import ROWS_MAX, ExpireMessages, expired_by
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE
from mq.protocol.names import NameRefused
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.lite_attributes import AttributeInvalid
from mq.protocol.requests.retention_attributes import RESERVE_TIME, check_reserve_time, reserve_hours

ROW = "T", 0, QueueOffset(5)


def test_command_names_queues_and_changes_no_metadata() -> None:
    command = decode_command(encode_command(ExpireMessages(rows=[ROW])))
    metadata = Metadata()
    before = metadata.capture()()
    assert metadata.apply(command).expired == (ROW,) == expired_by(command)
    assert metadata.capture()() == before, "what derives queues from the log again needs nothing else"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [ROW] * (ROWS_MAX + 1),
        [("T", -1, QueueOffset(0))],
        [("T", 0, QueueOffset(-1))],
        [("a/b", 0, QueueOffset(0))],
    ],
)
def test_invalid_command_is_refused(rows: list[tuple[str, int, QueueOffset]]) -> None:
    with pytest.raises((CommandInvalid, NameRefused)):
        encode_command(ExpireMessages(rows=rows))


@pytest.mark.parametrize(
    ("text", "hours"), [("1", 1), ("72", 72), ("-1", None), ("0", None), ("x", None), ("", None), ("9" * 30, None)]
)
def test_retention_hours_stored_by_earlier_releases_are_parsed(text: str, hours: int | None) -> None:
    assert reserve_hours({RESERVE_TIME: text}) == hours
    assert reserve_hours({}) is None


@pytest.mark.parametrize("text", ["0", "1.5", "-2", "", "one", "\u0661", "73"])
def test_invalid_retention_hours_are_refused(text: str) -> None:
    with pytest.raises(AttributeInvalid, match=RESERVE_TIME):
        check_reserve_time({RESERVE_TIME: text}, 72.0)


def test_allowed_retention_hours_are_accepted() -> None:
    for text in ("-1", "1", "72"):
        check_reserve_time({RESERVE_TIME: text}, 72.0)
    check_reserve_time({}, 0.5)
    with pytest.raises(AttributeInvalid, match=r"lite\.topic\.expiration"):
        check_reserve_time({RESERVE_TIME: "1", MESSAGE_TYPE_ATTRIBUTE: "LITE"}, 72.0)
