"""`leirgym tune`: let an optimiser tune a kernel of the project on this machine, through Kernel Tuner."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from envs.autotune_env.domain import NOWHERE, SpaceError
from envs.autotune_env.kernels import APPLICATIONS, find
from envs.autotune_env.live import LANGUAGES, Live
from envs.autotune_env.optimizers import Optimizer, make_optimizer
from envs.autotune_env.oracle import Oracle, Outcome
from envs.autotune_env.recorder import RecordError, describe
from envs.autotune_env.session import Session
from envs.autotune_env.space import Status
from envs.common.console import Answer, BadInput, Exit, Missing, columns, verb
from envs.common.progress import progress

COUNT = click.IntRange(min=1)

IDLE = 10_000
"""A session ends after so many choices in turn that are known, or are no configuration: they cost nothing here."""


def tune(
    optimizer: Optimizer,
    oracle: Oracle,
    budget: int,
    rng: np.random.Generator,
    report: Callable[[int, Outcome], None] = lambda done, outcome: None,
) -> dict[int, Outcome]:
    """Run an optimiser until `budget` different configurations are tried: what each row came to, in order."""
    session = Session(oracle, float("inf"), 0.0, rng)
    tuner = optimizer.start(oracle.domain, rng)
    idle = 0
    while len(session.seen) < budget and not session.exhausted and idle < IDLE:
        row = tuner.ask()
        idle = idle + 1 if row == NOWHERE or row in session.seen else 0
        outcome = session.evaluate(row)
        if not idle:
            report(len(session.seen), outcome)
        tuner.tell(row, outcome, len(session.seen) / budget)
    return session.seen


@verb("tune")
@click.argument("kernel", type=click.Choice(APPLICATIONS))
@click.option("--backend", type=click.Choice(tuple(LANGUAGES)), default="c", show_default=True)
@click.option(
    "--optimizer", default="genetic", show_default=True, help="A name, as for leirgym score; kernel-tuner:pso as well."
)
@click.option("--budget", type=COUNT, default=30, show_default=True, help="Configurations to try.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the optimiser.")
@click.option("--runs", type=COUNT, default=7, show_default=True, help="Samples of each configuration.")
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for one configuration, compiler included.",
)
@click.option("--threads", type=COUNT, help="Of C kernels.  [default: 1]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A Kernel Tuner cache (.json)."
)
def tune_kernel(
    kernel: str,
    backend: str,
    optimizer: str,
    budget: int,
    seed: int,
    runs: int,
    limit: float,
    threads: int | None,
    out: Path,
) -> Answer:
    """Tune KERNEL here: compile, check and time what the optimiser asks for, one configuration at a time.

    Every answer is in the cache at once: it replays as a space, Kernel Tuner reads it, and the same command goes on
    where it was stopped. Exit code 1 where no configuration worked.
    """
    if threads and backend != "c":
        raise BadInput("--threads is for --backend c")
    if out.suffix != ".json":
        raise BadInput(f"--out {out}: a Kernel Tuner cache is a .json file")
    chosen = _optimizer(optimizer)
    if importlib.util.find_spec("kernel_tuner") is None:
        raise Missing("Kernel Tuner is not installed: pip install 'leirgym[tune]'")
    try:
        device = describe(backend)["device"]
        definition = find(f"{kernel}/{backend}", **({"threads": threads} if threads else {}))
        with Live(definition, out, device=device, runs=runs, limit=limit) as live, progress(kernel, budget) as show:
            known = len(live.file.entries)
            seen = tune(
                chosen,
                live,
                budget,
                np.random.default_rng(seed),
                lambda done, outcome: show(done, _line(outcome, definition.objective)),
            )
            fresh = len(live.file.entries) - known
    except RecordError as error:
        raise Missing(str(error)) from error
    except SpaceError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(f"{out}: {error.strerror or error}") from error
    return _answer(seen, live, device, fresh, out)


def _optimizer(name: str) -> Optimizer:
    try:
        return make_optimizer(name)
    except ModuleNotFoundError as error:
        raise Missing(str(error)) from error
    except ValueError as error:
        raise BadInput(f"--optimizer: {error}") from error


def _line(outcome: Outcome, objective: str) -> str:
    return outcome.status.label if outcome.status else _shown(abs(outcome.loss), objective)


def _shown(value: float, objective: str) -> str:
    return f"{value:.4g} {'ms' if objective == 'time' else objective}"


def _answer(seen: dict[int, Outcome], live: Live, device: str, fresh: int, out: Path) -> Answer:
    objective = live.kernel.objective
    worked = {row: outcome.loss for row, outcome in seen.items() if outcome.status is Status.CORRECT}
    failed = dict(Counter(outcome.status.label for outcome in seen.values() if outcome.status))
    data: dict[str, Any] = {
        "kernel": live.kernel.name,
        "device": device,
        "objective": objective,
        "tried": len(seen),
        "measured_now": fresh,
        "failures": failed,
        "configurations": len(live.domain),
        "seconds": sum(outcome.seconds for outcome in seen.values()),
        "cache": str(out),
    }
    rows = [
        ("kernel", f"{live.kernel.name} on {device}"),
        ("tried", f"{len(seen)} of {len(live.domain):,} configurations, {fresh} of them now; {data['seconds']:.1f} s"),
        ("failed", ", ".join(f"{kind} {count}" for kind, count in failed.items()) or "none"),
    ]
    if worked:
        best = min(worked, key=worked.__getitem__)
        names = [parameter.name for parameter in live.domain.parameters]
        values = live.domain.value_of(best)
        data["best"] = {"value": abs(worked[best]), "configuration": {name: values[name] for name in names}}
        data["median"] = abs(float(np.median(list(worked.values()))))
        rows += [
            ("best", _shown(data["best"]["value"], objective)),
            ("", " ".join(f"{name}={values[name]}" for name in names)),
            ("median", _shown(data["median"], objective)),
        ]
    rows.append(("cache", str(out)))
    return Answer(columns(rows), data, Exit.OK if worked else Exit.NEGATIVE)
