"""How many optimisers did on many spaces: one standing for each pair, kept in a file that grows by a line each.

A run that is interrupted goes on where it was, and another optimiser is one more run over the same file: what is there
already is not computed again.
"""

from __future__ import annotations

import json
import multiprocessing
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.score import POINTS, Floats, Score, interval, resampled, scale, score, standardised_curve
from envs.autotune_env.simulate import repeat
from envs.autotune_env.space import Space

FORMAT = "leirgym-standings-1"

PLACES = 40
"""Points of the curves that are kept, each the mean of a stretch."""

DRAWS = 200
"""Bootstrap resamples that are kept."""

DIGITS = 3
"""Of curves and resamples, after the point."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How a pair is judged."""

    repeats: int = 100
    seed: int = 0
    """Of the first run."""
    limit: float | None = None
    """Processor seconds for a pair, after which it is judged by the runs it has."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an optimiser did on a space."""

    score: Score
    curve: tuple[float, ...]
    """The standardised curve (PLACES,) over the range."""
    draws: tuple[float, ...]
    """Scores (DRAWS,) of bootstrap resamples; those of different spaces are independent."""
    seconds: float
    """Processor seconds of a run."""

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> Self:
        """Read what `show` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        curve, draws = (tuple(map(float, item[name])) for name in ("curve", "draws"))
        if (len(curve), len(draws)) != (PLACES, DRAWS):
            raise ValueError(f"a curve has {PLACES} points and {DRAWS} resamples, not {len(curve)} and {len(draws)}")
        return cls(Score(**item["score"]), curve, draws, float(item["seconds"]))

    def show(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


Table = dict[str, dict[str, Standing]]
"""By the optimiser, then by the space."""


def judge(name: str, space: Space, asked: Asked) -> Standing:
    """Run the optimiser called `name` on a space, and score the runs."""
    measure = scale(space)
    begin = time.process_time()
    runs = repeat(make_optimizer(name), measure, asked.repeats, asked.seed, asked.limit or float("inf"))
    seconds = (time.process_time() - begin) / len(runs)
    curve = standardised_curve(measure, runs).reshape(PLACES, POINTS // PLACES).mean(axis=1)
    draws = resampled(measure, runs, asked.seed)[:DRAWS]
    return Standing(score(measure, runs, asked.seed), _rounded(curve), _rounded(draws), round(seconds, 6))


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(np.round(values, DIGITS).tolist())


def judged(
    pairs: Sequence[tuple[str, Space]], asked: Asked, workers: int = 1
) -> Iterator[tuple[str, Space, Standing | Exception]]:
    """Judge pairs as they end; an optimiser that raises is an answer. `workers` processes, or this one."""
    if workers == 1:
        for name, space in pairs:
            yield name, space, _tried(name, space, asked)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(_tried, name, space, asked): (name, space) for name, space in pairs}
        try:
            for job in as_completed(jobs):
                yield *jobs[job], job.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _tried(name: str, space: Space, asked: Asked) -> Standing | Exception:
    try:
        return judge(name, space, asked)
    except Exception as error:  # noqa: BLE001 (other people's optimisers)
        return error


def total(standings: Sequence[Standing]) -> Score:
    """The mean over spaces, with the interval of the mean."""
    low, high = interval(np.mean([one.draws for one in standings], axis=0))
    curve = np.mean([one.curve for one in standings], axis=0)
    mean = float(np.mean([one.score.mean for one in standings]))
    return Score(mean, low, high, float(curve.std()), min(one.score.repeats for one in standings))


def median(standings: Sequence[Standing]) -> tuple[float, float, float]:
    """The median over spaces, and its interval."""
    return float(np.median([one.score.mean for one in standings])), *interval(
        np.median([one.draws for one in standings], axis=0)
    )


class StandingsFile:
    """A file of standings (JSON lines): how they were judged, then one pair a line. A line that was cut is dropped.

    Raises `ValueError` for a file of something else, or one that was judged otherwise.
    """

    def __init__(self, path: Path, asked: Asked) -> None:
        self.path = path
        self._found: dict[tuple[str, str, int], Standing] = {}
        head = json.dumps({"format": FORMAT, **asdict(asked)})
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and lines[0] != head:
            raise ValueError(f"line 1: {lines[0][:100]} is not how this run judges, {head}: name another file")
        whole = [head]
        for number, line in enumerate(lines[1:], 2):
            try:
                item = json.loads(line)
                key = item["optimizer"], item["space"], item["record"]
                self._found[key] = Standing.parse(item)
            except (KeyError, TypeError, ValueError) as error:
                if number == len(lines):
                    break
                raise ValueError(f"line {number}: no standing: {type(error).__name__}: {error}") from None
            whole.append(line)
        path.write_text("\n".join(whole) + "\n", encoding="utf-8")

    def table(self, spaces: Sequence[Space]) -> Table:
        """What is known about these very records."""
        prints = {(space.name, fingerprint(space)) for space in spaces}
        table: Table = {}
        for (name, space, record), standing in self._found.items():
            if (space, record) in prints:
                table.setdefault(name, {})[space] = standing
        return table

    def add(self, name: str, space: Space, standing: Standing) -> None:
        """Append a line."""
        record = fingerprint(space)
        self._found[name, space.name, record] = standing
        item = {"optimizer": name, "space": space.name, "record": record, **standing.show()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(item, separators=(",", ":")) + "\n")


def fingerprint(space: Space) -> int:
    """A checksum of what the score depends on."""
    seconds = zlib.crc32(space.seconds.tobytes(), zlib.crc32(space.losses.tobytes()))
    return zlib.crc32(space.domain.configurations.tobytes(), seconds)
