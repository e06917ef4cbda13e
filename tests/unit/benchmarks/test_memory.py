"""How samples of memory become growth, a table and a picture; and the figures at half of the maximum rate."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from benchmarks.cases import Window
from benchmarks.load.report import BUCKETS_PER_E, Report
from benchmarks.memory.__main__ import parse_arguments
from benchmarks.memory.page import BEGIN, END, MemorySample, growths, picture, section
from benchmarks.paced import PACED, figures_of
from benchmarks.report.run_record import page_of

SVG = "{http://www.w3.org/2000/svg}"


def samples() -> list[MemorySample]:
    """Half an hour: one process grows at first, the other one by 12 MiB per hour all the time."""
    return [
        MemorySample(seconds, {"levels_off": min(100.0, seconds / 3), "grows": 50.0 + 12 * seconds / 3600})
        for seconds in range(30, 1801, 30)
    ]


def test_growth_counts_after_the_first_five_minutes() -> None:
    found = growths(samples())
    assert (found["levels_off"].first, found["levels_off"].most) == (100.0, 100.0)
    assert found["levels_off"].per_hour == pytest.approx(0.0)
    assert found["grows"].per_hour == pytest.approx(12.0)
    assert found["grows"].last == pytest.approx(56.0)


def test_memory_table_and_picture_have_every_process() -> None:
    text = section(samples(), load="some.", machine="a machine", date="today", load_average=1.0)
    assert "| resident memory, MiB | after 5 min | after 30 min | most | growth per hour |" in text
    assert "| grows | 51.0 | 56.0 | 56.0 | +12.0 |" in text
    drawing = ET.fromstring(picture(samples()))
    assert {"levels_off", "grows"} <= {text.text for text in drawing.iter(f"{SVG}text")}
    lines = [each for each in drawing.iter(f"{SVG}path") if each.attrib.get("fill") == "none"]
    assert [each.attrib["d"].count("L") for each in lines] == [59, 59]


def test_run_without_samples_that_count_is_refused() -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--minutes", "5"])
    assert parse_arguments(["--quick"]).no_write


def test_percentiles_at_half_rate_combine_all_windows() -> None:
    slow = round(BUCKETS_PER_E * 11.0)  # about 60 ms
    reports = [Report([1000, 1000], [0.1, 0.1], [{300: 1000}, {300: 996, slow: 4}])]
    windows = [Window(500.0, 1.0, 1.0, 8.0, (5.0, 5.0), 1.0, 0.1)] * 2
    figures = {figure.name: figure for figure in figures_of(1000.0, reports, windows)}
    assert figures["p99"].value < 1.0
    assert figures["p99.9"].value == pytest.approx(60.5, rel=0.02)
    assert not figures["p99.9"].is_met
    assert figures["rate"].is_met


def test_document_has_the_marks_of_both_sections() -> None:
    for name, marks in {"memory": (BEGIN, END), "paced": PACED.marks}.items():
        document = page_of(name).read_text()
        assert [document.count(mark) for mark in marks] == [1, 1]
