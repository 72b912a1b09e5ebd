"""Standings as a page and a plot, the spaces that were trained on and those that were held out apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from envs.autotune_env import suite
from envs.autotune_env.optimizers import tuned
from envs.autotune_env.score import BEGIN, END
from envs.autotune_env.standings import Asked, Standing, Table, median, total

PARTS: Mapping[str, str] = {"train": "trained on", "test": "held out"}

LOWEST = -0.6
"""Where the curves are cut off."""

ABOUT = """\
0 is what random search is expected to find, 1 the optimum at once, over the range of seconds in which random search
comes from {begin:.0%} to {end:.0%} of the way from the median configuration to the optimum. An interval covers 95 % of
bootstrap resamples of the runs. Random search itself scores below 0 where that range is a few dozen evaluations: a run
has what it has finished, while the baseline rounds the evaluations of a moment to the nearest whole number and rises
between them. The published package gives the same.

The device decides which spaces an optimiser may be designed on (`suite.HELD_OUT`). The optimisers called tuned have
the best parameters of a grid on {tuned}.
"""


def write(report: Path, table: Table, asked: Asked, command: str) -> str:
    """Write the page, and the plot beside it; a sentence about what was written."""
    plot = report.with_suffix(".png")
    parts = _parts(table)
    drawn = _draw(plot, table, parts)
    report.write_text(_markdown(table, parts, asked, command, plot.name if drawn else None), encoding="utf-8")
    return f"wrote {report}" + (f" and {plot}" if drawn else "; a plot needs matplotlib: pip install 'leirgym[plot]'")


def _parts(table: Table) -> dict[str, list[str]]:
    """The spaces of each part that has any, by name."""
    names = sorted({name for standings in table.values() for name in standings})
    return {part: found for part in PARTS if (found := suite.split(names, part))}


def _of(standings: Mapping[str, Standing], names: Sequence[str]) -> list[Standing]:
    return [standings[name] for name in names if name in standings]


def _ranked(table: Table, parts: Mapping[str, Sequence[str]]) -> list[str]:
    """The optimisers, best first, by their mean over the last part."""
    last = list(parts.values())[-1]
    means = {name: total(chosen).mean for name, of in table.items() if (chosen := _of(of, last))}
    return sorted(means, key=means.__getitem__, reverse=True)


def _markdown(table: Table, parts: Mapping[str, Sequence[str]], asked: Asked, command: str, plot: str | None) -> str:
    count = sum(map(len, parts.values()))
    limit = "" if asked.limit is None else f", after {asked.limit:g} s of processor time on a space no more"
    upto = "" if asked.limit is None else "up to "
    pieces = [
        f"# Optimisers\n\nPrinted by `{command}`: {len(table)} optimisers on {count} spaces, {upto}{asked.repeats} "
        f"runs of each on each{limit}, seed {asked.seed}.\n",
        ABOUT.format(begin=BEGIN, end=END, tuned=", ".join(tuned.table()["spaces"])),
        "## Over all spaces\n\n" + _markdown_table(_summary(table, parts)),
        *([f"![Curves of the optimisers]({plot})\n"] if plot else []),
    ]
    for part, names in parts.items():
        pieces.append(f"## Spaces that are {PARTS[part]}\n\n" + _markdown_table(_by_space(table, parts, names)))
    return "\n".join(pieces)


def _summary(table: Table, parts: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    titles = [f"{PARTS[part]}, {what}" for part in parts for what in ("mean", "median")]
    rows = [("optimiser", *titles, "runs", "s/run")]
    for name in _ranked(table, parts):
        cells = []
        for names in parts.values():
            chosen = _of(table[name], names)
            if chosen:
                mean = total(chosen)
                cells += [_cell(mean.mean, mean.low, mean.high), _cell(*median(chosen))]
            else:
                cells += ["", ""]
        every = list(table[name].values())
        fewest, most = (pick(one.score.repeats for one in every) for pick in (min, max))
        runs = str(most) if fewest == most else f"{fewest} to {most}"
        rows.append((name, *cells, runs, f"{np.mean([one.seconds for one in every]):.3f}"))
    return rows


def _by_space(table: Table, parts: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[tuple[str, ...]]:
    rows = [("optimiser", *names)]
    for who in _ranked(table, parts):
        found = (table[who].get(name) for name in names)
        rows.append((who, *(_cell(one.score.mean, one.score.low, one.score.high) if one else "" for one in found)))
    return rows


def _cell(mean: float, low: float, high: float) -> str:
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _draw(plot: Path, table: Table, parts: Mapping[str, Sequence[str]]) -> bool:
    """Draw the mean curve of each optimiser, a panel for each part; False without matplotlib."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(5.2 * len(parts) + 2, 5), layout="constrained")
    panels = figure.subplots(1, len(parts), sharey=True, squeeze=False)[0]
    colours, styles = colormaps["tab10"], ("-", "--", ":", "-.")
    for axes, (part, names) in zip(panels, parts.items(), strict=True):
        for number, who in enumerate(_ranked(table, parts)):
            chosen = _of(table[who], names)
            if chosen:
                curve = np.mean([one.curve for one in chosen], axis=0)
                at = (np.arange(len(curve)) + 0.5) / len(curve)
                style = {"color": colours(number % 10), "linestyle": styles[number // 10 % len(styles)]}
                axes.plot(at, curve, label=who, linewidth=1.4, **style)
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set(ylim=(LOWEST, 1), xlim=(0, 1), xlabel="part of the range of seconds")
        axes.set_title(f"{len(names)} spaces {PARTS[part]}")
    panels[0].set_ylabel("0: random search as expected, 1: the optimum")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, title="best first, held out")
    figure.savefig(plot, dpi=120, metadata={"Software": None})
    return True
