"""`leirgym record`, also `python -m envs.autotune_env.record`: the command that records tuning spaces."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from envs.autotune_env import compact
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.kernels import APPLICATIONS
from envs.autotune_env.recorder import BACKENDS, Plan, RecordError, describe, record, short
from envs.autotune_env.space import Space
from envs.common.console import Answer, BadInput, Exit, Missing, columns, verb
from envs.common.progress import progress

POSITIVE = click.FloatRange(min=0, min_open=True)
COUNT = click.IntRange(min=1)


@verb("record")
@click.argument("applications", nargs=-1, type=click.Choice(APPLICATIONS))
@click.option("--all", "everything", is_flag=True, help="All applications.")
@click.option("--backend", type=click.Choice(tuple(BACKENDS)), default="c", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="A .npz, or a folder for application/device.npz."
)
@click.option("--sample", type=COUNT, help="So many configurations of each, at random.  [default: all]")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order.")
@click.option("--runs", type=COUNT, default=16, show_default=True, help="Samples of each configuration.")
@click.option("--limit", type=POSITIVE, default=60.0, show_default=True, help="Seconds to run one configuration.")
@click.option("--seconds", type=POSITIVE, help="Stop after so long, with what there is.  [default: when done]")
@click.option("--workers", type=COUNT, help="Compilers at work.  [default: processors less one]")
@click.option("--threads", type=COUNT, help="Of C kernels.  [default: 1]")
@click.option("--device", default="", help="The second part of the name.  [default: from the device's own name]")
def record_spaces(
    applications: tuple[str, ...],
    everything: bool,
    backend: str,
    out: Path,
    sample: int | None,
    seed: int,
    runs: int,
    limit: float,
    seconds: float | None,
    workers: int | None,
    threads: int | None,
    device: str,
) -> Answer:
    """Measure the kernels of APPLICATIONS here: a Kernel Tuner cache (.json) and a compact space (.npz) of each.

    Stopped in any way, the same command goes on where it was. Exit code 1 where one of them is not whole.
    """
    chosen = APPLICATIONS if everything else tuple(dict.fromkeys(applications))
    single = out.suffix == compact.SUFFIX
    if not chosen:
        raise BadInput(f"name an application, or --all: {', '.join(APPLICATIONS)}")
    if single and len(chosen) > 1:
        raise BadInput(f"{out} is one file, for one application: name a folder")
    if threads and backend != "c":
        raise BadInput("--threads is for --backend c")
    try:
        versions = describe(backend)
    except RecordError as error:
        raise Missing(str(error)) from error
    constants = {"threads": threads} if threads else {}
    compilers = workers or max(1, (os.cpu_count() or 1) - 1)
    end = time.monotonic() + (float("inf") if seconds is None else seconds)
    rows: list[tuple[str, ...]] = [("space", "recorded", "failed", "best", "median", "file")]
    data: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for position, application in enumerate(chosen):
        plan = Plan(application, backend, sample, seed, runs, limit, compilers, constants)
        file = out if single else out / application / f"{device or short(versions['device'])}{compact.SUFFIX}"
        total = len(plan.rows(plan.task().kernel.domain()))
        now = time.monotonic()
        deadline = now + (end - now) / (len(chosen) - position)
        try:
            with progress(application, total) as report:
                space = record(plan, file.with_suffix(".json"), versions, deadline, report, device)
        except SpaceError as error:
            problems.append(str(error))
            continue
        file.write_bytes(compact.dump(space))
        data[space.name] = {**_summary(space), "wanted": total, "file": str(file)}
        rows.append(_row(space, total, file))
    if not data:
        raise BadInput("; ".join(problems))
    complete = not problems and all(item["recorded"] >= item["wanted"] for item in data.values())
    return Answer(
        columns(rows),
        {"spaces": data, "device": dict(versions), "problems": problems},
        Exit.OK if complete else Exit.NEGATIVE,
        notes=problems,
    )


def _summary(space: Space) -> dict[str, Any]:
    values = space.values[space.correct]
    best = float(values.max() if space.higher_is_better else values.min())
    median = float(np.median(values))
    return {"recorded": len(space), "failures": space.failures, "best": best, "median": median, "unit": space.unit}


def _row(space: Space, total: int, file: Path) -> tuple[str, ...]:
    found = _summary(space)
    failed = sum(space.failures.values())
    best, median = (f"{found[name]:.4g} {space.unit}" for name in ("best", "median"))
    return space.name, f"{len(space):,}/{total:,}", f"{failed:,}", best, median, str(file)


if __name__ == "__main__":
    record_spaces()
