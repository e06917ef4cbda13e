"""Names of queues and exchanges as names of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.names import check_group, check_topic, dead_letter_topic, pop_retry_topic
from mq.tasks.names import broadcast_group, exchange_topic, is_queue_topic, queue_topic

NAMES = st.text(st.characters(codec="utf-8"), max_size=200)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_no_two_queues_share_a_topic(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (queue_topic(*one) == queue_topic(*other)) is (one == other)
    assert queue_topic(*one) != exchange_topic(*other)
    assert broadcast_group(one[0]) != queue_topic(*other)


@given(NAMES, NAMES)
def test_every_name_is_valid(prefix: str, name: str) -> None:
    for topic in (queue_topic(prefix, name), exchange_topic(prefix, name), broadcast_group(prefix)):
        check_topic(topic)
        check_group(topic)
        check_topic(dead_letter_topic(topic))
        check_topic(pop_retry_topic(topic, topic))


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery%q_celery"),
        ("a.b", "celery%q_a%2Eb"),
        ("a-b", "celery%q_a-b"),
        ("a%2Eb", "celery%q_a%252Eb"),
        ("celery@host.celery.pidbox", "celery%q_celery%40host%2Ecelery%2Epidbox"),
        ("grün", "celery%q_gr%C3%BCn"),
    ],
)
def test_topics_are_readable(queue: str, topic: str) -> None:
    assert queue_topic("celery", queue) == topic


def test_long_names_differ_at_their_ends() -> None:
    one, other = queue_topic("celery", "a" * 150 + "b"), queue_topic("celery", "a" * 150 + "c")
    assert one != other
    assert one.startswith("celery%q_aaa")
    assert len(one) == 100


def test_prefixes_separate_applications() -> None:
    assert is_queue_topic("a", queue_topic("a", "b%q_c"))
    assert not is_queue_topic("a%q_b", queue_topic("a", "b%q_c"))
