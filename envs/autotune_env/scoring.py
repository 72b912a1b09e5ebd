"""`leirgym score`: score optimisers on tuning spaces, or runs that were recorded elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from envs.autotune_env import standings_report, suite
from envs.autotune_env.cli import by_option, folder_option, reading, split_option
from envs.autotune_env.optimizers import VARIANTS, installed, make_optimizer, variants
from envs.autotune_env.score import Run, Score, aggregate, scale, score
from envs.autotune_env.space import Space
from envs.autotune_env.standings import Asked, StandingsFile, Table, judged, total
from envs.common.console import Answer, BadInput, Missing, columns, verb
from envs.common.moves import shorten
from envs.common.progress import progress

SECONDS = click.FloatRange(min=0, min_open=True)


@verb("score")
@click.argument("names", nargs=-1)
@click.option(
    "--optimizers",
    default="random",
    show_default=True,
    help="Names with commas between, or all; variants as kernel-tuner:pso, pyatf:torczon, or pyatf:all.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=100, show_default=True, help="Runs on each space.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the first run.")
@click.option("--runs", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Score these runs (JSON).")
@click.option("--limit", type=SECONDS, help="Begin no run after so many processor seconds on a space.  [default: none]")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep what is done in this file, go on from it, and show all that is in it (JSON lines).",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the tables to this Markdown file, and curves beside it (with matplotlib).",
)
@split_option
@by_option
@folder_option
def score_optimizers(
    names: tuple[str, ...],
    optimizers: str,
    repeats: int,
    seed: int,
    runs: Path | None,
    limit: float | None,
    workers: int,
    save: Path | None,
    report: Path | None,
    split: str | None,
    by: str,
    folder: Path | None,
) -> Answer:
    """Score optimisers on the spaces NAMES: names, applications, files, or folders; by default, all that ship.

    0 is what random search is expected to find, 1 the optimum at once. A folder stands for the recordings in it:
    application/device.npz, and caches called application_device.json or .json.gz. With --save, an interrupted run
    goes on, and another optimiser is added by its name alone. With --runs, score what was recorded elsewhere:
    {"application/device": [{"seconds": [...], "values": [...]}, ...]}, the clock and the objective after each
    evaluation, null where it failed.
    """
    with reading():
        chosen = suite.resolve(names or suite.names(folder) or None, split, folder, samples=False, by=by)
        if runs is not None:
            if optimizers != "random" or save or report:
                raise BadInput("--runs are scored as they are: leave --optimizers, --save and --report out")
            return _answer({runs.name: _recorded(runs, chosen)})
        asked = Asked(repeats, seed, limit)
        table, notes = _judged(_listed(optimizers), chosen, asked, workers, save)
        if report is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            notes.append(standings_report.write(report, table, asked, _command()))
    found = {
        name: {place: one.score for place, one in of.items()} | {"all": total(list(of.values()))}
        for name, of in table.items()
    }
    return _answer(found, notes)


def _listed(names: str) -> list[str]:
    """The names of a list, or of all optimisers whose packages are there. Raises `BadInput` for one that is none."""
    try:
        listed = list(dict.fromkeys(name for word in names.split(",") for name in _meant(word)))
        for name in listed:
            make_optimizer(name)
    except ValueError as error:
        raise BadInput(f"--optimizers: {error}") from error
    except ModuleNotFoundError as error:
        raise Missing(str(error)) from error
    return listed


def _meant(word: str) -> Iterable[str]:
    """What a word of the list stands for."""
    name, _, variant = word.partition(":")
    if word == "all":
        return installed()
    return variants(name) if variant == "all" and name in VARIANTS else [word]


def _judged(
    names: Sequence[str], chosen: Sequence[Space], asked: Asked, workers: int, save: Path | None
) -> tuple[Table, list[str]]:
    """What each optimiser did on each space, in the order of the spaces; and a line for each that failed there."""
    try:
        file = StandingsFile(save, asked) if save else None
    except ValueError as error:
        raise BadInput(f"--save {save}: {error}") from error
    table = file.table(chosen) if file else {}
    todo = [(name, space) for space in chosen for name in names if space.name not in table.get(name, {})]
    notes = []
    with progress("score", len(todo)) as report:
        for done, (name, space, standing) in enumerate(judged(todo, asked, workers), 1):
            if isinstance(standing, Exception):
                notes.append(f"{name} failed on {space.name}: {type(standing).__name__}: {shorten(str(standing), 100)}")
                continue
            table.setdefault(name, {})[space.name] = standing
            if file:
                file.add(name, space, standing)
            report(done, f"{name} on {space.name} {standing.score.mean:.3f}")
    if todo and not table:
        raise BadInput("; ".join(notes))
    places = [space.name for space in chosen]
    whole = [name for name, of in table.items() if len(of) == len(places)]
    notes += [f"{name} is left out: it has no score on some of the spaces" for name in table if name not in whole]
    ordered = [*(name for name in names if name in whole), *(name for name in whole if name not in names)]
    return {name: {place: table[name][place] for place in places} for name in ordered}, notes


def _command() -> str:
    """The command as it was given, less the path of the program."""
    return " ".join(["leirgym", *sys.argv[1:]])


def _recorded(path: Path, chosen: Sequence[Space]) -> dict[str, Score]:
    try:
        data = json.loads(path.read_text())
        groups = [(scale(space), [_run(space, item) for item in data[space.name]]) for space in chosen]
        return {measure.space.name: score(measure, runs) for measure, runs in groups} | {"all": aggregate(groups)}
    except KeyError as error:
        raise BadInput(f"{path}: {error} is missing") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{path}: {shorten(str(error), 200)}") from error


def _run(space: Space, item: Mapping[str, Any]) -> Run:
    values = np.array([np.nan if value is None else value for value in item["values"]], np.float64)
    return Run(np.array(item["seconds"], np.float64), -values if space.higher_is_better else values)


def _answer(found: Mapping[str, Mapping[str, Score]], notes: Sequence[str] = ()) -> Answer:
    """One row for each space, one column for each optimiser, the interval beside each score; at the end their median.

    Where there are more optimisers than spaces, the other way round.
    """
    medians = {
        who: float(np.median([one.mean for name, one in scores.items() if name != "all"]))
        for who, scores in found.items()
    }
    tuned_on = list(next(iter(found.values())))
    rows = [("space", *found)]
    for name in tuned_on:
        cells = (scores[name] for scores in found.values())
        rows.append((name, *(f"{cell.mean:.3f} [{cell.low:.3f}, {cell.high:.3f}]" for cell in cells)))
    if len(tuned_on) > 2:
        rows.append(("median", *(f"{median:.3f}" for median in medians.values())))
    if len(found) > len(tuned_on):
        rows = [*zip(*rows, strict=True)]
    data = {who: {name: asdict(value) for name, value in scores.items()} for who, scores in found.items()}
    return Answer(columns(rows), {"scores": data, "medians": medians}, notes=notes)
