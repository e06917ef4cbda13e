"""Rendering: the same bytes as `prometheus_client` renders, in short steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder

from mq.monitoring.families import Families, Family, Histogram, Kind, LabelTexts, _metric, _Registry, render
from tests.support.steps import result_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n{},%s '), max_size=8)
NAMES = st.from_regex(r"[a-z][a-z_]{0,5}x", fullmatch=True)
VALUES = st.one_of(
    st.integers(0, 2**63),
    st.floats().map(lambda value: value + 0.0),  # a negative zero is equal to zero, and rendered like it
    st.sampled_from([0, 0.0, True, 1, 999_999, 1_000_000, 1e6, 1.5e-9, 1e300, float("inf"), float("nan")]),
)
ACCEPTS = [
    "",
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "text/plain; version=1.0.0; escaping=allow-utf-8",
    "application/openmetrics-text",
    "application/openmetrics-text; version=1.0.0; escaping=underscores",
]


@st.composite
def families(draw: st.DrawFn) -> Families:
    result: list[Family | Histogram] = []
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        labels = tuple(draw(st.lists(NAMES, unique=True, max_size=4)))
        values = st.tuples(*[TEXTS] * len(labels))
        if draw(st.integers(0, 4)) == 0:
            counts = (draw(st.integers(0, 9)), 2, 3)
            result.append(Histogram(name, draw(TEXTS), labels, draw(values), (0.1, 1.0), counts, 2.5))
        else:
            samples = draw(st.lists(st.tuples(values, VALUES), max_size=5)) * draw(st.sampled_from([1, 1, 40]))
            result.append(Family(name, draw(st.sampled_from(Kind)), draw(TEXTS), labels, samples))
    return result


def by_the_library(given: Families, accept: str) -> tuple[str, bytes]:
    encode, content_type = choose_encoder(accept)
    metrics = []
    for family in given:
        metrics.append(_metric(family))
        if isinstance(family, Family):
            for values, value in family.samples:
                metrics[-1].add_metric(values, value)  # type: ignore[attr-defined]
    return content_type, encode(_Registry(metrics))


@given(families(), st.sampled_from(ACCEPTS))
def test_metrics_are_rendered_as_by_the_library(given: Families, accept: str) -> None:
    assert result_of(render(given, accept)) == by_the_library(given, accept)


@pytest.mark.parametrize("accept", ACCEPTS)
def test_name_with_invalid_unicode_does_not_stop_a_scrape(accept: str) -> None:
    family = Family("a", Kind.GAUGE, "Help.", ("topic",), [(("T\ud83d",), 1), (("U",), 2)])
    assert b'\na{topic="T?"} 1.0\na{topic="U"} 2.0\n' in result_of(render([family], accept))[1]


@pytest.mark.slow
@given(st.lists(st.tuples(families(), st.sampled_from(ACCEPTS)), max_size=4))
def test_metrics_with_labels_of_earlier_scrapes_are_rendered_as_without(scrapes: list[tuple[Families, str]]) -> None:
    texts = LabelTexts()
    for some, accept in scrapes * 2:
        assert result_of(render(some, accept, texts)) == by_the_library(some, accept)


def test_only_labels_of_the_last_scrape_are_kept() -> None:
    texts = LabelTexts()
    for scrape in range(3):
        samples = [((str(number),), 1) for number in range(scrape, scrape + 100)]
        result_of(render([Family(name, Kind.GAUGE, "Help.", ("topic",), samples) for name in ("a", "b")], "", texts))
    last, _ = texts.next_scrape()
    assert list(last) == [("topic",)]
    assert set(last["topic",]) == {(str(number),) for number in range(2, 102)}


def test_rendering_steps_have_a_bounded_number_of_samples() -> None:
    family = Family("a", Kind.GAUGE, "Help.", ("topic",), [((str(number),), number) for number in range(1000)])
    assert sum(1 for _ in render([family], "")) >= 15
