"""Shows stored runs in a browser: a list, the page of each run, and comparisons of two runs. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from checkers.verdict import Result, Valid, in_words
from jepsen.judge import REPORT, VERDICT
from jepsen.report.page import STYLE

HOST = "127.0.0.1"


class VerdictFile(msgspec.Struct, frozen=True):
    """The content of a verdict.json."""

    valid: Valid
    results: list[Result] = []
    plan: dict[str, Any] = {}

    @property
    def word(self) -> str:
        """The verdict as text."""
        return in_words(self.valid)


def runs_in(store: Path) -> dict[str, VerdictFile]:
    """Return the judged runs in a directory by name, newest first. Raises OSError."""
    runs = {}
    for path in sorted(store.glob(f"*/{VERDICT}"), reverse=True):
        try:
            runs[path.parent.name] = msgspec.json.decode(path.read_bytes(), type=VerdictFile)
        except msgspec.MsgspecError:
            continue  # its run is still writing it
    return runs


def index_page(runs: dict[str, VerdictFile]) -> str:
    """Write the page that lists all runs, and lets the reader choose two of them."""
    rows = []
    for name, run in runs.items():
        faults = run.plan.get("scenario") or ", ".join(run.plan.get("nemeses", ()))
        rows.append(
            f"<tr><td><input type=radio name=a value='{escape(name)}'><input type=radio name=b value='{escape(name)}'>"
            f"</td><td><a href='/{quote(name)}/{REPORT}'>{escape(name)}</a></td>"
            f"<td class={run.word}>{run.word}</td><td>{escape(str(run.plan.get('workload', '')))}</td>"
            f"<td>{escape(str(faults))}</td><td>{_count(run, 'operations'):,}</td>"
            f"<td>{_count(run, 'faults confirmed')} of {_count(run, 'faults')}</td></tr>"
        )
    head = "<tr><th></th><th>run</th><th>verdict</th><th>workload</th><th>faults</th><th>operations</th>"
    body = f"<table>{head}<th>faults seen</th></tr>{''.join(rows)}</table>" if rows else "<p>There is no run.</p>"
    form = f"<form action=/compare>{body}<button>Compare the two chosen</button></form>"
    return _page("Runs", form)


def compare_page(names: Sequence[str], runs: Sequence[VerdictFile]) -> str:
    """Write the page that compares two runs promise by promise, with the numbers that differ."""
    rows = []
    by_name = [{result.name: result for result in run.results} for run in runs]
    for name in dict.fromkeys(name for results in by_name for name in results):
        cells = [_result(results.get(name)) for results in by_name]
        rows.append(f"<tr><td>{escape(name)}</td>{''.join(cells)}</tr>")
    head = "".join(f"<th><a href='/{quote(name)}/{REPORT}'>{escape(name)}</a></th>" for name in names)
    plan = "".join(
        f"<tr><td>{key}</td>{''.join(f'<td>{escape(str(run.plan.get(key)))}</td>' for run in runs)}</tr>"
        for key in ("command", "version", "began", "load", "backend", "settings")
    )
    verdicts = "".join(f"<td class={run.word}>{run.word}</td>" for run in runs)
    return _page(
        "Two runs", f"<table><tr><th></th>{head}</tr><tr><td>verdict</td>{verdicts}</tr>{''.join(rows)}{plan}</table>"
    )


def _result(result: Result | None) -> str:
    if result is None:
        return "<td>not checked</td>"
    parts = [f"<b class={in_words(result.valid)}>{in_words(result.valid)}</b>"]
    parts += [f"{escape(anomaly)}, {count:,} times" for anomaly, count in result.anomalies.items()]
    parts += [f"{count:,} {escape(name)}" for name, count in result.counts.items()]
    parts += map(escape, result.unknown)
    return f"<td>{'<br>'.join(parts)}</td>"


def _count(run: VerdictFile, name: str) -> int:
    return next((result.counts.get(name, 0) for result in run.results if result.name == "coverage"), 0)


def _page(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
        f"</head><body><h1>{title}</h1>{body}</body></html>\n"
    )


class _ReportHandler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with the list, a comparison, or a file of a run."""
        url = urlsplit(self.path)
        store = Path(self.directory)
        if url.path == "/":
            self._answer(index_page(runs_in(store)))
        elif url.path == "/compare":
            runs = runs_in(store)
            names = [name for each in ("a", "b") for name in parse_qs(url.query).get(each, [])]
            if len(names) == 2 and all(name in runs for name in names):
                self._answer(compare_page(names, [runs[name] for name in names]))
            else:
                self.send_error(HTTPStatus.NOT_FOUND, "choose two runs of the list")
        else:
            super().do_GET()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the name is its base's)
        """Log nothing for a page."""

    def _answer(self, text: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def open_server(store: Path, port: int) -> ThreadingHTTPServer:
    """Serve the runs of a directory on the loopback address. Port 0: any free one. Raises OSError."""
    return ThreadingHTTPServer((HOST, port), partial(_ReportHandler, directory=str(store)))
