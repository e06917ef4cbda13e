"""What pages show: bodies in all forms, lag, lists by page, previews."""

from __future__ import annotations

import json

import pytest

from mq.client.message import MessageQueue
from mq.console.pages.messages import by_of, next_places
from mq.console.views.dead_letters import place_of
from mq.console.views.groups import lag_rows, lag_seconds, most_behind, waiting_count
from mq.console.views.links import link
from mq.console.views.messages import BodyForm, begin_of, body_of
from mq.console.views.overview import page_of
from mq.console.views.resets import preview_rows
from mq.console.views.text import duration, list_page, names_with, visible
from mq.console.views.topics import kind_of, own_topics, reader_rows, sent_words
from mq.inspection.cluster import GroupStatus
from mq.inspection.findings.finding import Finding, Severity
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.broker import BrokerStatsData, StatsOver
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.topics import QueueEnds

NOW_MS = 1_800_000_000_000
Q0, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)


def progress(offset: int, end: int, age_ms: int = 0) -> GroupProgress:
    return GroupProgress(QueueOffset(end), QueueOffset(offset), NOW_MS - age_ms)


class _Body:
    """A message of which only the body is looked at."""

    def __init__(self, body: bytes) -> None:
        self.raw_body = body


def shown(body: bytes, form: str = "auto", bytes_max: int | None = None) -> tuple[str, str]:
    found = body_of(_Body(body), BodyForm.from_name(form), bytes_max)  # type: ignore[arg-type]
    return found.form, found.text


def test_json_is_indented_and_keeps_its_numbers() -> None:
    body = b'{"a": 1.10, "b": 12345678901234567890.5, "c": [1e400, true, null], "a": 2}'
    form, text = shown(body)
    assert form == "json"
    for each in ("1.10", "12345678901234567890.5", "1e400", '"a": 2'):
        assert each in text


@pytest.mark.parametrize("body", [b"NaN", b"{", b"hello", b'{"a": NaN}', b"[" * 5000 + b"]" * 5000])
def test_unreadable_json_is_shown_as_text(body: bytes) -> None:
    assert shown(body)[0] == "text"
    assert shown(body, "json")[0] == "text"


def test_bytes_that_are_not_text_are_shown_as_bytes() -> None:
    form, text = shown(b"\x00\xffABC")
    assert form == "hex"
    assert text == "00000000  00 ff 41 42 43                                   ..ABC"
    assert shown(b"\xff", "text")[0] == "hex"
    assert shown(b"plain", "hex")[0] == "hex"


def test_empty_body_is_shown() -> None:
    assert shown(b"") == ("text", "")


def test_large_body_is_cut_between_characters() -> None:
    body = "ä".encode() * 1000
    found = body_of(_Body(body), BodyForm.AUTO, 101)  # type: ignore[arg-type]
    assert (found.form, found.text, found.cut) == ("text", "ä" * 50, 2000 - 101)
    assert body_of(_Body(body), BodyForm.AUTO, None).cut == 0  # type: ignore[arg-type]


def test_truncated_body_is_not_shown_as_json() -> None:
    body = json.dumps(list(range(1000))).encode()
    assert shown(body, "auto", 100)[0] == "text"


def test_invisible_characters_are_escaped() -> None:
    assert visible("a\u202eb\x00c\u200bd\ne\x1b[31m") == "a\\u202eb\\x00c\\u200bd\\ne\\x1b[31m"
    assert visible("\ud800") == "\\ud800"
    assert visible("Grüße 你好 😀") == "Grüße 你好 😀"


@pytest.mark.parametrize(
    ("body", "begin"),
    [
        (b"short", "short"),
        (b"\xff\xfe", "ff fe"),
        (b"line\nnext", "line\\nnext"),
        (b"x" * 500, "x" * 120 + " ..."),
        ("€".encode() * 300, "€" * 120 + " ..."),
    ],
)
def test_lists_show_the_beginning_of_a_body_on_one_line(body: bytes, begin: str) -> None:
    assert begin_of(body) == begin


def test_offset_beyond_the_end_gives_no_negative_lag() -> None:
    found = {Q0: progress(12, 10), Q1: progress(3, 10)}
    assert waiting_count(found) == 7
    [beyond, behind] = lag_rows(found, [], NOW_MS)
    assert (beyond.behind, beyond.state) == ("beyond the end by 2", "bad")
    assert (behind.behind, behind.state) == ("7", "")


def test_lag_in_time_counts_queues_where_messages_wait() -> None:
    assert lag_seconds({Q0: progress(10, 10, 900_000), Q1: progress(3, 10, 240_000)}, NOW_MS) == 240
    assert lag_seconds({Q0: progress(10, 10, 900_000)}, NOW_MS) is None
    retry = MessageQueue("%RETRY%g", "broker-a", 0)
    assert lag_seconds({retry: progress(0, 5, 900_000)}, NOW_MS) is None


def test_groups_with_the_largest_lag_come_first() -> None:
    known = {"a": {Q0: progress(0, 5)}, "b": {Q0: progress(0, 50)}}
    assert most_behind(["a", "b", "c"], known) == ["b", "a", "c"]
    assert [row.group for row in reader_rows("Orders", known, {}, ())] == ["b", "a"]


def test_preview_shows_the_effect_of_a_reset() -> None:
    found = preview_rows({Q0: 10, Q1: 0}, {Q0: progress(4, 10), Q1: progress(7, 10)})
    assert [row.effect for row in found] == ["skips 6 messages", "consumes 7 messages again"]
    assert preview_rows({Q0: 1}, {})[0].effect == "no offset yet"
    assert preview_rows({Q0: 4}, {Q0: progress(4, 10)})[0].effect == "stays"


@pytest.mark.parametrize(("wanted", "number", "rows"), [(1, 1, 50), (3, 3, 20), (99, 3, 20), (0, 1, 50)])
def test_missing_page_number_shows_the_nearest_page(wanted: int, number: int, rows: int) -> None:
    page = list_page(list(range(120)), wanted)
    assert (page.number, len(page.rows), page.pages, page.total) == (number, rows, 3, 120)


def test_empty_list_has_one_page() -> None:
    assert list_page([], 5).pages == 1


def test_search_for_names_ignores_case() -> None:
    assert names_with(["Orders", "reorder", "Bills"], "ORDER") == ["Orders", "reorder"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-5, "0 s"), (3.4, "3 s"), (240, "4 min"), (7500, "2 h 5 min"), (300_000, "3 days")],
)
def test_durations_are_readable(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_any_name_fits_into_an_address() -> None:
    assert link("/topic", name="a b/c?d=e&f#g\n%") == "/topic?name=a%20b%2Fc%3Fd%3De%26f%23g%0A%25"
    assert link("/topics", part="", page=None) == "/topics"


@pytest.mark.parametrize("text", ["", "x", "a/b c", "a/0", "a/0 x"])
def test_impossible_places_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        place_of(text)


def test_dead_letter_places_are_parsed() -> None:
    assert place_of("broker-a/3 17") == ("broker-a", 3, 17)


def test_topics_are_classified_by_name() -> None:
    kinds = [kind_of(name) for name in ("Orders", "%RETRY%g", "%DLQ%g", "TBW102")]
    assert kinds == ["ordinary", "retry", "dead letters", "system"]
    own = own_topics([GroupStatus("C", "broker-a", None, None, ())])
    assert own == {"C", "broker-a", "C_REPLY_TOPIC"}
    assert [kind_of(name, own) for name in ("C", "broker-b")] == ["system", "ordinary"]


@pytest.mark.parametrize(
    ("query", "by"),
    [
        ({}, "newest"),
        ({"by": "newest", "value": "4711"}, "key"),
        ({"by": "oldest", "value": " "}, "oldest"),
        ({"by": "newest", "time": "2026-03-01T09:30"}, "time"),
        ({"by": "oldest", "offset": "7"}, "offset"),
        ({"by": "id", "value": "4711"}, "id"),
        ({"by": "time", "value": "4711"}, "time"),
    ],
)
def test_filled_field_chooses_messages(query: dict[str, str], by: str) -> None:
    """Whoever types a key and does not say "those with a key" wants these all the same."""
    assert by_of(query) == by


@pytest.mark.parametrize(
    ("subject", "remedy", "page"),
    [
        ("consumer group a&b", "start its consumers", "/group?name=a%26b"),
        ("consumer group mail", "raftmq dlq list mail", "/dead-letters?group=mail"),
        ("group broker-a", "start them", "/broker-group?name=broker-a"),
        ("name server 10.0.0.1:9876", "start it", ""),
        ("cluster", "", ""),
    ],
)
def test_finding_links_to_the_console_page_of_its_subject(subject: str, remedy: str, page: str) -> None:
    assert page_of(Finding(Severity.WARNING, subject, "waits", remedy, "docs/x.md")) == page


def test_next_page_contains_messages_of_a_slow_clock() -> None:
    """It is not shown, although a later one of its queue is; what was shown comes twice then, and none is left out."""
    ends = {Q0: QueueEnds(QueueOffset(0), QueueOffset(10), 0), Q1: QueueEnds(QueueOffset(3), QueueOffset(3), 0)}
    assert next_places([Q0, Q1], {Q0: (5, 10)}, ends, {Q0: 8}, is_newest=True) == "9.3"
    assert next_places([Q0, Q1], {Q0: (5, 10)}, ends, {}, is_newest=True) == "5.3"
    assert next_places([Q0, Q1], {Q0: (0, 5)}, ends, {}, is_newest=True) == ""
    assert next_places([Q0, Q1], {Q0: (0, 5)}, ends, {Q0: 2}, is_newest=False) == "2.3"
    assert next_places([Q0, Q1], {Q0: (0, 5)}, ends, {}, is_newest=False) == "5.3"
    assert next_places([Q0, Q1], {Q0: (5, 10)}, ends, {}, is_newest=False) == ""


def test_rates_of_a_topic_add_up_over_broker_groups() -> None:
    one = BrokerStatsData(stats_minute=StatsOver(sum=600, tps=10.0))
    large = BrokerStatsData(stats_minute=StatsOver(sum=60_000, tps=1000.0))
    assert sent_words({"a": one, "b": one}, {"a": large, "b": large}) == "20.0/s, 2.0 kB/s"
    assert sent_words({}, {}) == "0.0/s, 0 bytes/s"
