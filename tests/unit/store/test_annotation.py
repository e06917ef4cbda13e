"""Commands that an annotation tells of are cut out of the entry; anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.store.annotation import ANNOTATION_START, Span, join_commands, split_commands
from mq.store.errors import AnnotationDamaged

BODY = bytes(range(200))
SPANS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=5)


@given(SPANS, st.binary(max_size=20))
def test_commands_cut_by_annotation_equal_those_of_the_entry(spans: list[Span], runs: bytes) -> None:
    annotation = join_commands(spans, ANNOTATION_START + runs)
    expected = [BODY[start : start + nbytes] for start, nbytes in spans]
    assert split_commands(annotation, BODY) == (expected, ANNOTATION_START + runs)
    assert split_commands(annotation, memoryview(BODY)) == (expected, ANNOTATION_START + runs)


@given(SPANS, st.data())
def test_truncated_annotation_is_refused(spans: list[Span], data: st.DataObject) -> None:
    annotation = join_commands(spans, ANNOTATION_START)
    with pytest.raises(AnnotationDamaged):
        split_commands(annotation[: data.draw(st.integers(0, len(annotation) - 1))], BODY)


@pytest.mark.parametrize("span", [(0, 201), (201, 0), (150, 51), (2**32 - 1, 2**32 - 1)])
def test_command_beyond_the_entry_is_refused(span: Span) -> None:
    with pytest.raises(AnnotationDamaged, match="of 200"):
        split_commands(join_commands([span], ANNOTATION_START), BODY)


@pytest.mark.parametrize("annotation", [ANNOTATION_START, b"\x02\0\0\0\0\x01", b"\x03\0\0\0\0\x01"])
def test_annotation_without_commands_is_refused(annotation: bytes) -> None:
    with pytest.raises(AnnotationDamaged):
        split_commands(annotation, BODY)
