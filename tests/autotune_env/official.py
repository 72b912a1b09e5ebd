"""The published package `autotuning_methodology`, fed with our spaces and our runs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from envs.autotune_env.score import BEGIN, END, POINTS
from envs.autotune_env.space import Status


def to_t4(space) -> str:
    """A space with lower-is-better `time` as a T4 result file."""
    results = []
    for row in range(len(space)):
        correct = space.status[row] == Status.CORRECT
        compiling, verifying, benchmark, own = (space.costs[row].astype(float) * 1e3).tolist()
        times = {"compilation": compiling, "framework": own, "search_algorithm": 0, "validation": verifying}
        results.append(
            {
                "configuration": space.domain.value_of(row),
                "times": times | {"runtimes": [benchmark]},
                "invalidity": Status(space.status[row]).label,
                "correctness": int(correct),
                "measurements": [{"name": "time", "value": space.values[row] if correct else "failed", "unit": "ms"}],
                "objectives": ["time"],
            }
        )
    return json.dumps({"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": results})


def statistics(space, folder: Path):
    """The package's view of a space."""
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    path = folder / "space_T4.json"
    path.write_text(to_t4(space))
    keys = ["compilation", "runtimes", "framework", "search_algorithm", "validation"]
    return SearchspaceStatistics("synthetic", "device", True, keys, ["time"], path, full_validate=False)


def results_of(runs) -> SimpleNamespace:
    """Runs as the package's results: one column for each run, NaN below its end."""
    length = max(len(run.seconds) for run in runs)
    seconds, best = (np.full((length, len(runs)), np.nan) for _ in range(2))
    for column, run in enumerate(runs):
        seconds[: len(run.seconds), column] = run.seconds
        best[: len(run.seconds), column] = run.best
    evaluations = np.repeat(np.arange(1.0, length + 1)[:, None], len(runs), axis=1)
    results = SimpleNamespace(
        fevals_results=evaluations,
        objective_time_results=seconds,
        objective_time_results_per_key=seconds[None],
        objective_performance_best_results=best,
        objective_performance_results_per_key=best[None],
    )
    return SimpleNamespace(
        group_name="runs",
        group_display_name="runs",
        device_name="device",
        application_name="synthetic",
        stochastic=True,
        minimization=True,
        get_results=lambda: results,
    )


def official(space, runs, folder: Path, seed: int = 0) -> dict:
    """Cut-offs, baseline, curve and score by the package."""
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
    from autotuning_methodology.curves import StochasticOptimizationAlgorithm

    np.random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stats = statistics(space, folder)
        first, last, begin, end = stats.cutoff_point_fevals_time_start_end(BEGIN, END)
        times = np.linspace(begin, end, POINTS)
        baseline = RandomSearchCalculatedBaseline(stats)
        ranked = stats.objective_performances_total_sorted
        found = StochasticOptimizationAlgorithm(results_of(runs)).get_curve_over_time(
            times, dist=ranked, confidence_level=0.95, return_split=False
        )[2]
        return {
            "evaluations": (first, last),
            "times": times,
            "baseline": baseline.get_curve_over_time(times),
            "curve": found,
            "score": float(np.mean(baseline.get_standardised_curve(times, found, "time"))),
        }
