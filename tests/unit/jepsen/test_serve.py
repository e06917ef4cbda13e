"""The list of stored runs, and two of them side by side."""

from __future__ import annotations

import threading
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest

from checkers.verdict import Result, Verdict
from jepsen.judge import REPORT, VERDICT
from jepsen.report.serve import compare_page, index_page, open_server, runs_in


def store_run(store: Path, name: str, *, anomalies: dict[str, int] | None = None) -> None:
    examples = {anomaly: ["<one>"] for anomaly in anomalies or {}}
    result = Result("log", "nothing is lost", {"sends": 7}, anomalies or {}, examples)
    verdict = Verdict([result], {"workload": "log", "nemeses": ["kill"], "command": f"raftmq-jepsen {name}"})
    (store / name).mkdir(parents=True)
    content = {"valid": verdict.valid, **msgspec.to_builtins(verdict)}
    (store / name / VERDICT).write_bytes(msgspec.json.encode(content))
    (store / name / REPORT).write_text("the page")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_run(tmp_path, "1-good")
    store_run(tmp_path, "2-bad", anomalies={"lost-write": 3})
    (tmp_path / "3-half").mkdir()
    (tmp_path / "3-half" / VERDICT).write_bytes(b'{"valid": tr')
    return tmp_path


def test_run_list_omits_half_written_runs(store: Path) -> None:
    runs = runs_in(store)
    assert list(runs) == ["2-bad", "1-good"]
    text = index_page(runs)
    assert text.index("2-bad") < text.index("1-good")
    assert "BROKEN" in text


def test_comparison_has_both_sides_of_each_promise(store: Path) -> None:
    runs = runs_in(store)
    text = compare_page(["1-good", "2-bad"], [runs["1-good"], runs["2-bad"]])
    assert "lost-write, 3 times" in text
    assert text.count("7 sends") == 2


def test_index_of_an_empty_store_has_no_runs() -> None:
    assert "There is no run" in index_page({})


def fetched(port: int, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_server_shows_runs_and_nothing_outside_its_store(store: Path) -> None:
    (store.parent / "secret").write_text("secret")
    with open_server(store, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = int(server.server_address[1])
            assert b"1-good" in fetched(port, "/")[1]
            assert fetched(port, f"/1-good/{REPORT}") == (200, b"the page")
            assert b"lost-write" in fetched(port, "/compare?a=1-good&b=2-bad")[1]
            for path in ("/compare?a=1-good", "/compare?a=1-good&b=4", "/../secret", "/%2e%2e/secret"):
                assert fetched(port, path)[0] == 404
        finally:
            server.shutdown()
            thread.join()
