"""Writes the HTML page of a run: promises and verdicts, a timeline, and the command that repeats it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from checkers.history import Fault, History
from checkers.verdict import Result, Verdict, in_words
from jepsen.report.charts import charts
from jepsen.report.evidence import HistoryLine, lines_of, time_of_day, values_in_examples
from jepsen.report.timeline import draw

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1060px; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } td, th { border: 1px solid #ccc; padding: .3em .6em;
text-align: left; vertical-align: top } th { background: #f3f3f3 } code { background: #f3f3f3; padding: .1em .3em }
.valid { color: #176f2c; font-weight: bold } .BROKEN { color: #b00020; font-weight: bold }
.UNKNOWN { color: #9a6700; font-weight: bold } svg { width: 100%; height: auto } li { margin: .2em 0 }
"""


def page(history: History, verdict: Verdict) -> str:
    """Write the page as self-contained HTML."""
    plan = history.plan
    word = in_words(verdict.valid)
    system = plan.get("system") or f"raftmq {plan.get('version')}"
    title = f"{plan.get('workload')} under {', '.join(plan.get('nemeses', ()))}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(title)}: {word}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}: <span class='{word}'>{word}</span></h1>",
        f"<p>{escape(str(system))}, {escape(str(plan.get('began')))}, back end "
        f"{escape(str(plan.get('backend')))}, load average at the beginning {escape(str(plan.get('load')))}.<br>",
        f"Repeat with: <code>{escape(str(plan.get('command')))}</code>. The seed determines faults and client choices; "
        "it does not determine timing.</p>",
        _outside(history),
        "<h2>Promises</h2>",
        _promises(verdict.results),
        *(_anomalies(history, result) for result in verdict.results if result.anomalies),
        "<h2>Timeline</h2>",
        "<p>Each dot is a send, by start and duration (green: acknowledged, red: refused, orange: outcome "
        "unknown). Bands are faults. The bars below show which replica led.</p>",
        draw(history),
        charts(history),
        "<h2>Faults</h2>",
        _faults(history.faults, history.began),
        "<p>An unknown outcome is not a failure of the broker: the message may or may not be stored, and both are "
        "checked. UNKNOWN means that the run could not decide, and counts as failed.</p></body></html>\n",
    ]
    return "\n".join(parts)


def _outside(history: History) -> str:
    """The separate client processes and their work; empty for workloads without."""
    if history.plan.get("workload") != "queue":
        return ""
    parts = [
        f"{event.n} sent {event.v['sent']:,} messages and received {event.v['received']:,}"
        for event in history.of_run("took-part")
    ]
    java = history.plan.get("java", "not asked")
    notes = [] if "java" in history.plan.get("programs", ()) else [f"RocketMQ's Java client did not run: {java}"]
    return f"<p>Clients in processes of their own: {escape('; '.join([*parts, *notes]))}.</p>"


def _promises(results: Iterable[Result]) -> str:
    rows = []
    for result in results:
        word = in_words(result.valid)
        counts = ", ".join(f"{count:,} {name}" for name, count in result.counts.items())
        why = "".join(f"<br>{escape(reason)}" for reason in result.unknown)
        rows.append(
            f"<tr><td>{escape(result.name)}</td><td>{escape(result.promise)}</td>"
            f"<td class='{word}'>{word}</td><td>{escape(counts)}{why}</td></tr>"
        )
    head = "<tr><th>checker</th><th>promise</th><th>verdict</th><th>checked</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _anomalies(history: History, result: Result) -> str:
    """Describe each anomaly with its examples, and their lines in the history and the servers' logs."""
    parts = [f"<h2>Broken: {escape(result.promise)}</h2>"]
    values = values_in_examples(example for each in result.examples.values() for example in each)
    lines = lines_of(history, values)
    for anomaly, count in result.anomalies.items():
        examples = "".join(
            f"<li>{escape(example)}{_evidence(history, example, lines)}</li>" for example in result.examples[anomaly]
        )
        parts.append(f"<h3>{escape(anomaly)}, {count:,} times</h3><ul>{examples}</ul>")
    return "".join(parts)


def _evidence(history: History, example: str, lines_by_value: Mapping[str, Sequence[HistoryLine]]) -> str:
    """The lines of the history that name the values of an example, and the logs of its replicas at that time."""
    lines = [line for value in values_in_examples([example]) for line in lines_by_value.get(value, ())]
    if not lines:
        return ""
    items = "".join(
        f"<li><a href='history.jsonl'>history.jsonl</a> line {line.number}: {escape(line.says)}</li>" for line in lines
    )
    nodes = {node for node in history.nodes if re.search(rf"\b{re.escape(node)}\b", example)}
    nodes |= {line.node for line in lines if line.node is not None}
    first, last = (time_of_day(history, choose(line.at for line in lines)) for choose in (min, max))
    when = f" from {first} to {last}" if first else ""
    logs = ", ".join(f"<a href='logs/{escape(node)}.log'>{escape(node)}</a>" for node in sorted(nodes))
    logs_item = f"<li>the logs of {logs}{when}</li>" if nodes else ""
    return f"<details><summary>{len(lines)} lines of the history</summary><ul>{items}{logs_item}</ul></details>"


def _faults(faults: list[Fault], start: int) -> str:
    if not faults:
        return "<p>None.</p>"
    rows = []
    for fault in faults:
        ends = "the end" if fault.ended is None else f"{(fault.ended - start) / 1e9:.1f} s"
        effect = fault.seen or "not observed to take effect"
        rows.append(
            f"<tr><td>{escape(fault.what)}</td><td>{(fault.began - start) / 1e9:.1f} s</td><td>{ends}</td>"
            f"<td>{escape(effect)}</td></tr>"
        )
    head = "<tr><th>fault</th><th>from</th><th>to</th><th>observed</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
