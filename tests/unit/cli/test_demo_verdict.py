"""The demonstration's text, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mq.cli.demo_text import source_directory, source_lines, tag_of
from mq.cli.demo_verdict import History, Queue

Q0 = Queue("broker-a", 0)
Q1 = Queue("broker-a", 1)


@dataclass
class Story:
    """Writes a history in few words."""

    history: History = field(default_factory=History)

    def send(self, number: int, queue: Queue, offset: int, *, first_attempt: bool = True) -> Story:
        self.history.sent += 1
        self.history.on_acknowledge(number, queue, offset, first_attempt=first_attempt)
        return self

    def get(self, number: int, queue: Queue, offset: int, *, by: str = "c1", intact: bool = True) -> Story:
        self.history.on_delivery(by, queue, offset, number, intact=intact)
        return self


def test_history_consumed_completely_in_order_is_good() -> None:
    story = Story().send(0, Q0, 0).send(1, Q1, 0).send(2, Q0, 1)
    verdict = story.get(0, Q0, 0).get(2, Q0, 1).get(1, Q1, 0, by="c2").history.verdict()
    assert verdict.is_good
    assert (verdict.sent, verdict.acknowledged, verdict.consumed, verdict.duplicates) == (3, 3, 3, 0)


def test_acknowledged_message_never_consumed_is_reported_lost() -> None:
    story = Story().send(0, Q0, 0).send(1, Q0, 1).get(0, Q0, 0)
    assert story.history.missing_count == 1
    verdict = story.history.verdict()
    assert verdict.lost == 1
    assert not verdict.is_good
    assert "message 1" in verdict.examples[0]


def test_unstored_send_of_unknown_outcome_is_not_reported_lost() -> None:
    story = Story().send(0, Q0, 0).get(0, Q0, 0)
    story.history.sent += 1
    story.history.unknown.add(1)
    verdict = story.history.verdict()
    assert verdict.is_good
    assert verdict.outcome_unknown == 1


def test_stored_unknown_outcome_is_not_a_duplicate() -> None:
    story = Story().send(0, Q0, 0).get(0, Q0, 0)
    story.history.sent += 1
    story.history.unknown.add(1)
    verdict = story.get(1, Q0, 1).history.verdict()
    assert verdict.is_good
    assert verdict.duplicates == 0


def test_duplicate_stored_by_a_retry_does_not_fail_the_demo() -> None:
    """The first copy's outcome was unknown; the second was acknowledged further on."""
    story = Story().send(0, Q0, 0).send(1, Q0, 2, first_attempt=False).get(0, Q0, 0).get(1, Q0, 1).get(1, Q0, 2)
    verdict = story.history.verdict()
    assert verdict.is_good
    assert (verdict.duplicates, verdict.sent_again) == (1, 1)


def test_redelivery_after_a_rebalance_is_a_duplicate_and_good() -> None:
    story = Story().send(0, Q0, 0).send(1, Q0, 1).get(0, Q0, 0).get(1, Q0, 1)
    verdict = story.get(0, Q0, 0, by="c2").get(1, Q0, 1, by="c2").get(0, Q0, 0).history.verdict()
    assert verdict.is_good
    assert verdict.duplicates == 3


def test_new_message_with_a_lower_offset_is_out_of_order() -> None:
    story = Story().send(0, Q0, 0).send(1, Q0, 1).get(1, Q0, 1).get(0, Q0, 0)
    assert story.history.verdict().out_of_order == 1


def test_lower_offset_in_another_queue_is_in_order() -> None:
    story = Story().send(0, Q0, 5).send(1, Q1, 1).get(0, Q0, 5).get(1, Q1, 1)
    assert story.history.verdict().is_good


def test_later_send_with_lower_offset_is_out_of_order() -> None:
    story = Story().send(0, Q0, 1).send(1, Q0, 0).get(1, Q0, 0).get(0, Q0, 1)
    verdict = story.history.verdict()
    assert verdict.out_of_order == 1
    assert not verdict.is_good


def test_verdict_accepts_a_resent_message_behind_later_messages() -> None:
    story = Story().send(0, Q0, 1, first_attempt=False).send(1, Q0, 0).get(1, Q0, 0).get(0, Q0, 1)
    assert story.history.verdict().is_good


def test_verdict_finds_two_contents_at_one_offset() -> None:
    """What a fork of the log would look like to two consumers."""
    story = Story().send(0, Q0, 0).get(0, Q0, 0).get(7, Q0, 0, by="c2")
    verdict = story.history.verdict()
    assert verdict.wrong_content == 1
    assert not verdict.is_good


def test_verdict_finds_another_message_at_an_acknowledged_offset() -> None:
    story = Story().send(0, Q0, 0).get(1, Q0, 0).get(0, Q0, 1)
    assert story.history.verdict().wrong_content == 1


def test_verdict_finds_two_acknowledgements_of_one_offset() -> None:
    story = Story().send(0, Q0, 0).send(1, Q0, 0)
    assert story.history.verdict().wrong_content == 1


def test_verdict_finds_a_changed_body() -> None:
    story = Story().send(0, Q0, 0).get(0, Q0, 0, intact=False)
    assert story.history.verdict().wrong_content == 1


@pytest.mark.parametrize("count", [6, 1000])
def test_examples_are_few_and_counts_complete(count: int) -> None:
    story = Story()
    for number in range(count):
        story.send(number, Q0, number)
    verdict = story.history.verdict()
    assert verdict.lost == count
    assert len(verdict.examples) == 5


def test_source_lines_are_in_file_order_without_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_bytes(b"import b\n")
    (tmp_path / "a.py").write_bytes(b"import a\n\n   \nx = 1\r\n")
    (tmp_path / "notes.txt").write_bytes(b"not this\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "c.py").write_bytes(b"not this either\n")
    assert source_lines(tmp_path, 10) == [b"import a", b"x = 1", b"import b"]
    assert source_lines(tmp_path, 2) == [b"import a", b"x = 1"]


def test_this_interpreter_has_text_enough() -> None:
    assert len(source_lines(source_directory(), 100_000)) == 100_000


def test_tags_show_the_kind_of_line() -> None:
    assert tag_of(b"    def f(self):") == "definition"
    assert tag_of(b"from a import b") == "import"
    assert tag_of(b"#: comment") == "comment"
    assert tag_of(b"x = 1") == "code"
