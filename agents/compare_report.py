"""A comparison as tables for the terminal and as one self-contained HTML page."""

from __future__ import annotations

import html
import io
import itertools
from collections.abc import Sequence
from string import Template

from agents.compare import Comparison, Run, geomean
from envs.common.console import columns

_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#882255",
    "#44aa99",
    "#999933",
    "#555555",
)
"""Told apart by colour-blind readers too (Okabe and Ito, 2008, and more of that kind)."""

_LINES = tuple(itertools.product(("-", "--", ":"), _COLOURS))


def tables(found: Comparison) -> str:
    """Agents over all workloads, then each workload by itself."""
    parts = [overview(found), by_workload(found), by_proposer(found)]
    return "\n\n".join(columns(rows) for rows in parts if rows)


def overview(found: Comparison) -> list[tuple[str, ...]]:
    """One row for each agent: speedups, and how it searched."""
    head = ["agent"]
    for reference in found.references:
        head += [f"over {reference}", "max"]
    rows = [(*head, "fast_1", "verified", "area", "strategies", "overhead", "seconds")]
    for agent in found.agents:
        figures = found.summary(agent)
        row = [agent]
        for reference in found.references:
            row += [_times(figures.get(f"{kind} over {reference}")) for kind in ("geomean", "max")]
        last = found.references[-1] if found.references else ""
        row += [
            _share(figures.get(f"fast_1 over {last}")),
            _share(figures["verified"]),
            f"{figures['area']:.2f}",
            f"{figures['strategies']:.1f}",
            _share(figures["overhead"]),
            f"{figures['seconds']:.1f}",
        ]
        rows.append(tuple(row))
    return rows


def by_workload(found: Comparison) -> list[tuple[str, ...]]:
    """One row for each workload: the geometric mean over seeds of each agent, over the first reference."""
    if not found.references:
        return [("workload", *found.agents), *((name, *["-"] * len(found.agents)) for name in found.workloads)]
    reference = found.references[0]
    rows = [(f"over {reference}", *found.agents)]
    for workload in found.workloads:
        row = [workload]
        for agent in found.agents:
            speedups = [run.speedups[reference] for run in found.of(agent, workload) if reference in run.speedups]
            row.append(_times(geomean(speedups) if speedups else None))
        rows.append(tuple(row))
    return rows


def by_proposer(found: Comparison) -> list[tuple[str, ...]]:
    """One row for each agent that ran with `uniform` and others: their evaluations to the geomean that it ends at."""
    reached = found.proposers()
    proposers = tuple(dict.fromkeys(proposer for counts in reached.values() for proposer in counts))
    rows = [("evaluations to the geomean of uniform", *proposers)] if reached else []
    for agent, counts in reached.items():
        rows.append((agent, *(str(counts.get(proposer) or "-") for proposer in proposers)))
    return rows


def _times(ratio: float | None) -> str:
    return f"{ratio:.2f}x" if ratio else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def page(found: Comparison, title: str) -> str:
    """The whole comparison as an HTML page without links to anything. Needs matplotlib."""
    sections = [_section(found, workload) for workload in found.workloads]
    return _PAGE.substitute(
        title=html.escape(title),
        overview=_table(overview(found)),
        workloads="\n".join(_table(rows) for rows in (by_workload(found), by_proposer(found)) if rows),
        curves=_figure(found, None),
        sections="\n".join(sections),
    )


def _section(found: Comparison, workload: str) -> str:
    runs = [run for run in found.runs if run.workload == workload and run.curve]
    best = max(runs, key=lambda run: run.curve[-1] or 0.0)
    trace = "".join(f"<li><code>{html.escape(action)}</code></li>" for action in best.actions)
    return _SECTION.substitute(
        workload=html.escape(workload),
        curves=_figure(found, workload),
        winner=html.escape(_winner(best)),
        before=html.escape(best.before),
        after=html.escape(best.after),
        trace=trace or "<li>(the root)</li>",
    )


def _winner(run: Run) -> str:
    speedups = ", ".join(f"{ratio:.2f}x over {name}" for name, ratio in run.speedups.items())
    return f"{run.agent}, seed {run.seed}: {speedups or 'nothing verified'}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body)
    return f"<table><tr>{cells}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _figure(found: Comparison, workload: str | None) -> str:
    """Best speedup so far by evaluation, one line for each agent, as SVG."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for (dashes, colour), agent in zip(itertools.cycle(_LINES), found.agents, strict=False):
        curve = found.curve(agent, workload)
        line = {"color": colour, "linestyle": dashes, "linewidth": 1.6}
        axes.step(range(1, len(curve) + 1), curve, where="post", label=agent, **line)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.set_xlabel("evaluations")
    axes.set_ylabel("best speedup over the baseline")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f6f6f4; padding: .8rem; overflow-x: auto; font-size: 13px; line-height: 1.4; }
.programs { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
h2 { margin-top: 2.5rem; border-bottom: 2px solid #ddd; }
</style></head><body>
<h1>$title</h1>
<p>Speedups are ratios of median times, timed again for the winner of each run; means are geometric. <em>fast_1</em>:
share of runs faster than the last reference. <em>verified</em>: share of evaluations that ended with a verified
program. <em>area</em>: mean log of the best speedup so far. <em>overhead</em>: wall time of the search that
evaluations do not fill, over theirs. <em>seconds</em>: of a search, on average.</p>
$overview
$workloads
<figure>$curves<figcaption>Best so far, geometric mean over all runs.</figcaption></figure>
$sections
</body></html>
""")

_SECTION = Template("""<h2>$workload</h2>
<figure>$curves</figure>
<p>Fastest: $winner.</p>
<div class="programs"><div><h3>before</h3><pre>$before</pre></div><div><h3>after</h3><pre>$after</pre></div></div>
<h3>trace</h3><ol>$trace</ol>
""")
