"""Draws a run: a panel of bars for each load, with the least and the most of all windows. Pure, SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from benchmarks.peers.peer import Peer
from benchmarks.peers.samples import LOADS, Load, PeerMeasurements, Sample, Spread
from mq.cli.bench.plot import WIDTH, svg

GAP, LABEL, VALUE = 30, 130, 64
BAR, STEP, HEAD, LEGEND = 16, 24, 40, 34
ROOM_FOR_SPREAD = 1.5
"""The factor by which the scale extends beyond the longest bar, at most."""
COLOURS = {"majority, on disk": "#1d4ed8", "one server, on disk": "#0f766e", "majority, page cache": "#f59e0b"}
"""The colours of bars, by the guarantee of an acknowledgement."""

Figure = Callable[[Sample], float]


def draw(peers: Sequence[Peer], measurements: dict[str, PeerMeasurements]) -> str:
    """Draw the picture as SVG."""
    single, *others = LOADS
    panels = [_panel(single, "p50 in ms, less is better", peers, measurements, lambda sample: sample.p50_ms, "{:.2f}")]
    panels += [
        _panel(load, "messages/s", peers, measurements, lambda sample: sample.messages_per_second, "{:,.0f}")
        for load in others
    ]
    rows = max(count for count, _ in panels)
    panel_height = HEAD + rows * STEP + 16
    height = LEGEND + 2 * panel_height
    parts: list[str] = []
    for number, (durability, colour) in enumerate(COLOURS.items()):
        x = GAP + number * 220
        parts.append(f'<rect x="{x}" y="10" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="22">acknowledged: {escape(durability)}</text>')
    for number, (_, lines) in enumerate(panels):
        x, y = number % 2 * (WIDTH // 2), LEGEND + number // 2 * panel_height
        parts += [f'<g transform="translate({x} {y})">', *(f"  {line}" for line in lines), "</g>"]
    return svg("raftmq and other systems under the same loads, 1 KiB a message", parts, height=height)


def _panel(
    load: Load, unit: str, peers: Sequence[Peer], measurements: dict[str, PeerMeasurements], figure: Figure, form: str
) -> tuple[int, list[str]]:
    """Draw the panel of one load; returns also the number of its bars."""
    bars = [
        (peer, spread)
        for peer in peers
        if peer.name in measurements and (spread := measurements[peer.name].spread(load, figure)) is not None
    ]
    room = WIDTH // 2 - GAP - LABEL - VALUE
    # One window that was much slower than all others must not shrink every bar.
    end = min(
        max((spread.most for _, spread in bars), default=1.0),
        ROOM_FOR_SPREAD * max((spread.median for _, spread in bars), default=1.0),
    )
    scale = room / end
    lines = [f'<text x="{GAP}" y="24" font-size="13" font-weight="600">{escape(load.name)}: {escape(unit)}</text>']
    for number, (peer, spread) in enumerate(bars):
        lines += _bar(peer, spread, HEAD + number * STEP, scale, end, form.format(spread.median))
    return len(bars), lines


def _bar(peer: Peer, spread: Spread, y: int, scale: float, end: float, value: str) -> list[str]:
    """Draw a bar with its spread; a spread beyond ``end`` is cut there, and has no stroke across."""
    middle = y + BAR / 2
    least, most = LABEL + spread.least * scale, LABEL + min(spread.most, end) * scale
    across = f"M{most:.1f} {y + 4}v8" if spread.most <= end else ""
    return [
        f'<text x="{LABEL - 6}" y="{y + 12}" text-anchor="end">{escape(peer.name)}</text>',
        f'<rect x="{LABEL}" y="{y}" width="{spread.median * scale:.1f}" height="{BAR}" '
        f'fill="{COLOURS[peer.durability]}"/>',
        f'<path d="M{least:.1f} {middle}H{most:.1f}M{least:.1f} {y + 4}v8{across}" stroke="#0f172a"/>',
        f'<text x="{most + 6:.1f}" y="{y + 12}">{value}</text>',
    ]
