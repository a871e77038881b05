"""Charts of results as SVG, and the page that holds them. They follow the reader's light or dark setting and say
everything in words and shapes too, so that colour is not needed."""

from __future__ import annotations

import html
import math
from typing import Any, Callable

Row = dict[str, Any]

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
.quiet { fill: #59636e; }
.title { font-size: 14px; font-weight: 600; }
.axis { stroke: #8c959f; stroke-width: 1; fill: none; }
.grid { stroke: #d1d9e0; stroke-width: 1; stroke-dasharray: 2 3; }
.even { stroke: #1b1f24; stroke-width: 1.5; }
.faster { fill: #1a7f64; stroke: #1a7f64; }
.slower { fill: #ffffff; stroke: #b35900; stroke-width: 1.5; }
.forward { fill: #1f6feb; stroke: #1f6feb; }
.backward { fill: #ffffff; stroke: #8250df; stroke-width: 1.5; }
.back { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .axis { stroke: #656c76; }
  .grid { stroke: #3d444d; }
  .even { stroke: #e6edf3; }
  .faster { fill: #3fb995; stroke: #3fb995; }
  .slower { fill: #0d1117; stroke: #f0883e; }
  .forward { fill: #58a6ff; stroke: #58a6ff; }
  .backward { fill: #0d1117; stroke: #bc8cff; }
  .back { fill: #0d1117; }
}
"""


def _svg(width: int, height: int, label: str, body: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{html.escape(label, quote=True)}">\n<style>{STYLE}</style>\n'
        f'<rect class="back" width="{width}" height="{height}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{html.escape(words)}</text>'


def name(row: Row) -> str:
    direction = "" if "quantize" in row["op"] else f" {row['direction']}"
    return f"{row['op']}{direction} {row['dtype']}, {row['case']}"


def compared(rows: list[Row]) -> list[Row]:
    """The rows that have a competitor, best ratio first."""
    return sorted((r for r in rows if r.get("ratio")), key=lambda r: (-r["ratio"], r.get("name") or name(r)))


# Where charts of ratios have their bars.
LEFT, RIGHT, TOP, STEP, WIDTH = 330, 670, 58, 20, 860


def _ratio_chart(title: str, words: str, values: list[float], lines: int) -> tuple[Callable[[float], float], list[str]]:
    """Where a ratio is on a logarithmic axis for all the values, and the title, the axis with 1 marked, and its labels over some lines."""
    low, high = min([0.8, *(v * 0.97 for v in values)]), max([1.6, *(v * 1.05 for v in values)])
    scale = (RIGHT - LEFT) / (math.log(high) - math.log(low))

    def at(ratio: float) -> float:
        return LEFT + (math.log(ratio) - math.log(low)) * scale

    body = [_text(12, 22, title, "title"), _text(12, 40, words, "quiet")]
    bottom = TOP + STEP * lines
    shown: list[float] = []
    for tick in (1.0, 2.0, 5.0, 10.0, 20.0, 0.5, 3.0, 1.5, 0.8, 1.25):
        # A label that would touch another is left out.
        if low <= tick <= high and all(abs(at(tick) - at(t)) > 40 for t in shown):
            shown.append(tick)
            kind = "even" if tick == 1.0 else "grid"
            body.append(f'<line class="{kind}" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{TOP - 6}" y2="{bottom}"/>')
            body.append(_text(at(tick), bottom + 16, f"{tick:g}x", "quiet", "middle"))
    return at, body


def _bars(title: str, bars: list[tuple[str, float, str]]) -> str:
    """One bar for each name, ratio and words about it: filled bars are faster than the others, outlined ones slower."""
    at, body = _ratio_chart(title, "Right of the line warpwright is faster.", [ratio for _, ratio, _ in bars], max(len(bars), 1))
    for i, (label, ratio, words) in enumerate(bars):
        y = TOP + STEP * i
        one, end = at(1.0), at(ratio)
        kind = "faster" if ratio >= 1 else "slower"
        start, length = min(one, end), max(abs(end - one), 1.0)
        body.append(_text(LEFT - 8, y + 13, label, "", "end"))
        body.append(f'<rect class="{kind}" x="{start:.1f}" y="{y + 3}" width="{length:.1f}" height="13"/>')
        body.append(_text(max(one, end) + 6, y + 13, f"{ratio:.2f}x  {words}", "quiet"))
    return _svg(WIDTH, TOP + STEP * max(len(bars), 1) + 40, title, body)


def ratios(rows: list[Row], title: str = "Time of the best other library over ours") -> str:
    """One bar for each row with a competitor."""
    return _bars(title, [(name(r), r["ratio"], r["other"]) for r in compared(rows)])


def models(rows: list[Row], title: str = "Time of a model in PyTorch over that with our operators, each at its best") -> str:
    """One bar for each model that was run in both."""
    return _bars(title, [(r["name"], r["ratio"], f"{r['other_ms']:.1f} to {r['ours_ms']:.1f} ms") for r in compared(rows)])


def families(rows: list[Row], title: str = "Time of the best other library over ours, by operation") -> str:
    """One line for each operation, from its least ratio to its greatest, with a circle at their geometric mean: filled if that is at least 1."""
    of_op: dict[str, list[float]] = {}
    for r in compared(rows):
        of_op.setdefault(r["op"], []).append(r["ratio"])
    found = [(math.exp(sum(map(math.log, of)) / len(of)), op, of) for op, of in of_op.items()]
    found.sort(key=lambda f: (-f[0], f[1]))
    words = "Right of the line warpwright is faster. Lines go from the least to the greatest case, circles are geometric means."
    at, body = _ratio_chart(title, words, [ratio for of in of_op.values() for ratio in of], max(len(found), 1))
    for i, (mean, op, of) in enumerate(found):
        y = TOP + STEP * i + 10
        low, high = at(min(of)), at(max(of))
        body.append(_text(LEFT - 8, y + 4, op, "", "end"))
        body.append(f'<path class="axis" d="M{low:.1f} {y - 4}v8M{low:.1f} {y}H{high:.1f}M{high:.1f} {y - 4}v8"/>')
        body.append(f'<circle class="{"faster" if mean >= 1 else "slower"}" cx="{at(mean):.1f}" cy="{y}" r="5"/>')
        cases = "1 case" if len(of) == 1 else f"{len(of)} cases"
        body.append(_text(max(high, at(mean) + 5) + 6, y + 4, f"{mean:.2f}x  {cases}", "quiet"))
    return _svg(WIDTH, TOP + STEP * max(len(found), 1) + 40, title, body)


def roofline(rows: list[Row], title: str = "Fraction of the memory bandwidth of the same run") -> str:
    """One point for each row: circles are forward, diamonds backward."""
    rows = sorted((r for r in rows if r.get("roofline")), key=lambda r: (-r["roofline"], name(r)))
    left, step, top, width = 330, 18, 58, 860
    right = width - 60
    bottom = top + step * max(len(rows), 1)

    def at(fraction: float) -> float:
        return left + (right - left) * min(fraction, 1.1) / 1.1

    body = [
        _text(12, 22, title, "title"),
        _text(12, 40, "Minimal bytes over time; 1 is what a plain copy or addition reaches. "
              "Filled circles: forward; outlined diamonds: backward.", "quiet"),
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        kind = "even" if tick == 1.0 else "grid"
        body.append(f'<line class="{kind}" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{top - 6}" y2="{bottom}"/>')
        body.append(_text(at(tick), bottom + 16, f"{tick:g}", "quiet", "middle"))
    for i, r in enumerate(rows):
        y, x = top + step * i + 9, at(r["roofline"])
        body.append(_text(left - 8, y + 4, name(r), "", "end"))
        body.append(f'<line class="axis" x1="{left}" x2="{x:.1f}" y1="{y}" y2="{y}"/>')
        if r["direction"] == "forward":
            body.append(f'<circle class="forward" cx="{x:.1f}" cy="{y}" r="5"/>')
        else:
            points = f"{x:.1f},{y - 6} {x + 6:.1f},{y} {x:.1f},{y + 6} {x - 6:.1f},{y}"
            body.append(f'<polygon class="backward" points="{points}"/>')
        body.append(_text(x + 10, y + 4, f"{r['roofline']:.2f}", "quiet"))
    return _svg(width, bottom + 30, title, body)


def page(rows: list[Row]) -> str:
    """A page of its own: charts and the table."""
    first = rows[0] if rows else {"gpu": "-", "driver": "-", "date": "-", "commit": "-", "versions": {}}
    versions = ", ".join(f"{k} {v}" for k, v in first["versions"].items())
    about = f"{first['gpu']}, driver {first['driver']}, {first['date']}, commit {first['commit']}; {versions}"
    cells = []
    for r in rows:
        other = (f"{r['other_us']:.1f}", r["other"], f"{r['ratio']:.2f}") if r.get("ratio") else ("-", "-", "-")
        values = (r["op"], r["direction"], r["dtype"], r["case"], f"{r['ours_us']:.1f}", f"{r['roofline']:.2f}", *other)
        cells.append("<tr>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in values) + "</tr>")
    heads = ("op", "direction", "dtype", "case", "ours, us", "roofline", "best other, us", "who", "other / ours")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>warpwright: measurements</title>
<style>
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem;
  background: Canvas; color: CanvasText; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
td, th {{ padding: 2px 10px 2px 0; text-align: left; border-bottom: 1px solid color-mix(in srgb, CanvasText 20%, Canvas); }}
</style>
</head>
<body>
<h1>warpwright: measurements</h1>
<p>{html.escape(about)}</p>
{ratios(rows)}
{roofline(rows)}
<table>
<thead><tr>{"".join(f"<th>{h}</th>" for h in heads)}</tr></thead>
<tbody>
{chr(10).join(cells)}
</tbody>
</table>
</body>
</html>
"""
