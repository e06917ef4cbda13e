"""Rows of the pages about dead letters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mq.client.dead_letter_requeue import origin_topic
from mq.console.views.messages import begin_of, message_link
from mq.console.views.text import number
from mq.inspection.cluster_queries import MessageCount
from mq.inspection.dead_letters import Letter, death_reason, letter_fields, queue_name
from mq.protocol.names import DEAD_LETTER_PREFIX


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter. ``place`` is the value of its checkbox."""

    place: str
    given_up: str
    topic: str
    attempts: str
    keys: str
    why: str
    begin: str
    link: str


def groups_with_letters(topics: Sequence[str], counts: Mapping[str, MessageCount] | None) -> list[tuple[str, str]]:
    """Return the groups of these dead letter topics, each with the number of its dead letters."""
    return [
        (topic.removeprefix(DEAD_LETTER_PREFIX), number(counts[topic].messages if counts and topic in counts else None))
        for topic in topics
    ]


def letter_rows(letters: Sequence[Letter], *, hide_bodies: bool) -> list[LetterRow]:
    """Return a row for each dead letter, in their order."""
    return [
        LetterRow(
            place=place_text(each),
            given_up=str(letter_fields(each)["given_up"] or "-"),
            topic=origin_topic(each) or "-",
            attempts=number(letter_fields(each)["attempts"]),
            keys=" ".join(each.keys),
            why="" if hide_bodies else death_reason(each),
            begin="" if hide_bodies else begin_of(each.raw_body),
            link=message_link(each),
        )
        for each in letters
    ]


def place_text(letter: Letter) -> str:
    """Format broker group, queue and offset of a dead letter: ``broker-a/0 17``."""
    return f"{queue_name(letter.queue)} {letter.queue_offset}"


def place_of(text: str) -> tuple[str, int, int]:
    """Parse broker group, queue and offset from the text of `place_text`. Raises ValueError."""
    queue, _, offset = text.rpartition(" ")
    broker, _, number_text = queue.rpartition("/")
    if not broker:
        raise ValueError(f"{text!r} is not a place")
    return broker, int(number_text), int(offset)
