"""Describes the trace of a message in sentences, in order of time. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mq.protocol.messages.trace import ContextCode, MessageKind, MessageTrace, SendTrace, TracedHandling

_KINDS = {MessageKind.HALF: "half ", MessageKind.DELAY: "delayed ", MessageKind.ORDER: "ordered "}


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of the message as text. Its time is in milliseconds since 1970, by the clock of the client."""

    at_ms: int
    text: str


def trace_events(story: MessageTrace) -> list[TraceEvent]:
    """Return all events of a trace, the earliest first. Clients' texts are on one line, without control characters."""
    events = [TraceEvent(sent.timestamp_ms, _send_text(sent)) for sent in story.sent]
    for transaction in story.transactions:
        check = ", after a check-back of the broker" if transaction.from_check else ""
        text = f"{_name(transaction.group)} ended the transaction: {_name(transaction.state)}{check}"
        events.append(TraceEvent(transaction.timestamp_ms, text))
    for recall in story.recalled:
        how = "recalled it" if recall.success else "failed to recall it"
        events.append(TraceEvent(recall.timestamp_ms, f"{_name(recall.group)} {how}"))
    events += [TraceEvent(handling.begun.timestamp_ms, _handling_text(handling)) for handling in story.handled]
    return sorted(events, key=lambda event: event.at_ms)


def trace_summary(story: MessageTrace) -> list[str]:
    """Say how often each group handled the message, a line each."""
    lines = []
    for group in sorted({handling.begun.group for handling in story.handled}):
        times = [each for each in story.handled if each.begun.group == group]
        success_count = sum(each.ended is not None and each.ended.success for each in times)
        lines.append(f"{_name(group)}: handled {_times(len(times))}, {_times(success_count)} with success")
    return lines or ["no consumer with tracing handled it"]


def _send_text(send: SendTrace) -> str:
    what = f"{_KINDS.get(MessageKind(send.kind), '') if send.kind in set(MessageKind) else ''}message"
    result = "sent" if send.success else "failed to send"
    more = "".join(f", {name} {_name(value)}" for name, value in (("tags", send.tags), ("keys", send.keys)) if value)
    return (
        f"{_name(send.group)} at {_name(send.client_host)} {result} a {what} of {send.body_bytes} bytes to "
        f"{_name(send.topic)} at {_name(send.store_host)} in {send.cost_ms} ms{more}"
    )


def _handling_text(handling: TracedHandling) -> str:
    start, end = handling.begun, handling.ended
    attempt = f" (delivery {start.retry_times + 1})" if start.retry_times else ""
    if end is None:
        result = "started to handle it, end unknown"
    elif end.success:
        result = f"handled it in {end.cost_ms} ms"
    else:
        code = end.context_code
        why = ContextCode(code).name.lower() if code in set(ContextCode) else f"code {code}"
        result = f"failed to handle it in {end.cost_ms} ms: {why}"
    return f"{_name(start.group)} at {_name(start.client_host)} {result}{attempt}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _name(text: str | None) -> str:
    return "unknown" if not text else "".join(each if each.isprintable() else "?" for each in text)
