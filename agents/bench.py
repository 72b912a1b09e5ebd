"""`leirgym bench`: measures what the README states, and prints it as tables.

Every figure is a ratio within one run, or a cost on this machine; nothing is compared across machines.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from agents.base import Budget, Evaluated, Event, make_agent
from agents.compare import Watched, overhead
from envs.common.actions import STOP
from envs.common.console import Answer, columns, verb
from envs.common.evaluation import Timing
from envs.common.progress import progress
from envs.leir_env import census, fuzz, walks, workloads
from envs.leir_env.problem import LeirProblem, LeirState
from envs.leir_env.strategies import REGISTRY
from envs.leir_env.torch_baseline import against_reference

SINGLE = ("matmul_256", "softmax", "layernorm", "gelu", "conv2d", "sum", "argmax")
"""Single operators: what a step costs on these is the budget of design."""

SEARCHED = ("matmul_512", "matmul_1024", "softmax", "leir://single/softmax?m=1024&n=1024", "layernorm", "attention")

_FORKS = 20

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """One part of the benchmark: a title, the names of the columns, the rows."""

    title: str
    head: Row
    rows: tuple[Row, ...]

    def text(self) -> str:
        return f"{self.title}\n{columns([self.head, *self.rows])}"

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [dict(zip(self.head, row, strict=True)) for row in self.rows]}


def imports(seed: int, budget: int) -> Table:
    """Time `import leirgym` in a fresh interpreter, over that of an interpreter that imports nothing."""

    def wall(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    bare = [wall("pass") for _ in range(7)]
    full = [wall("import leirgym") for _ in range(7)]
    row = ("import leirgym", f"{statistics.median(full) - statistics.median(bare):.2f} s")
    return Table("Import", ("what", "time"), (row,))


def steps(seed: int, budget: int) -> Table:
    """Walk at random through LEIR-v0 with the model reward and the full menu; time steps and forks."""
    import gymnasium as gym

    import leirgym

    assert leirgym.VERBS
    rows = []
    for name in (*SINGLE, "attention"):
        env = gym.make("LEIR-v0", workload=name, reward="model", disable_env_checker=True).unwrapped
        rng = np.random.default_rng(seed)
        step, fork = [], []
        for _ in range(20):
            _, info = env.reset(seed=seed)
            for _ in range(8):
                legal = np.flatnonzero(info["action_mask"])
                start = time.perf_counter()
                _, _, terminated, truncated, info = env.step(int(rng.choice(legal[1:] if len(legal) > 1 else legal)))
                step.append(time.perf_counter() - start)
                start = time.perf_counter()
                for _ in range(_FORKS):
                    env.fork()  # type: ignore[attr-defined]
                fork.append((time.perf_counter() - start) / _FORKS)
                if terminated or truncated:
                    break
        env.close()
        rows.append(
            (
                name,
                f"{1e3 * statistics.median(step):.2f} ms",
                f"{1e3 * statistics.fmean(step):.2f} ms",
                f"{1e6 * statistics.median(fork):.1f} us",
                str(len(legal) - 1),
            )
        )
    return Table(
        "Steps of LEIR-v0, model reward and full menu (random legal policy, episodes of 8)",
        ("workload", "step, median", "step, mean", "fork", "actions"),
        tuple(rows),
    )


def evaluations(seed: int, budget: int) -> Table:
    """Evaluate neighbours of the default schedule of matmul 256, one thread, nothing stored."""
    problem = LeirProblem("matmul_256")
    rng = np.random.default_rng(seed)
    problem.evaluate([problem.root])
    start_from = LeirState(problem.baseline)
    states: dict[str, LeirState] = {}
    while len(states) < budget:
        state = start_from
        for _ in range(int(rng.integers(1, 4))):
            actions = [action for action in problem.legal(state) if action != STOP]
            state = problem.apply(state, actions[int(rng.integers(len(actions)))])
        states[problem.key(state)] = state
    start = time.perf_counter()
    records = problem.evaluate(list(states.values()))
    seconds = time.perf_counter() - start
    problem.close()
    verdicts = ", ".join(
        f"{n} {status}"
        for status in sorted({r.status for r in records})
        if (n := sum(r.status is status for r in records))
    )
    row = ("matmul_256", f"{len(records) / seconds:.1f}", verdicts)
    return Table("Verified and timed evaluations", ("workload", "evaluations/s", "verdicts"), (row,))


def searches(seed: int, budget: int) -> Table:
    """Beam search from each root; the winner is timed against the default schedule, the root and torch."""
    rows = []
    for name in SEARCHED:
        workload = workloads.load(name)
        problem = LeirProblem(workload)
        with progress(name, budget) as show:

            def listen(event: Event, show: Callable[[int, str], None] = show) -> None:
                if isinstance(event, Evaluated):
                    show(event.count, str(event.trace[-1]) if event.trace else "root")

            watched = Watched(problem)
            result = make_agent("beam").solve(watched, Budget(budget), np.random.default_rng(seed), listen)
        final = problem.root
        for action in result.actions:
            final = problem.apply(final, action)
        race = against_reference(final.program, workload.reference)
        found = result.evaluation
        problem.close()
        rows.append(
            (
                name,
                f"{found.speedup_over_root:.1f}x" if found and found.speedup_over_root else "-",
                f"{found.speedup:.2f}x" if found and found.speedup else "-",
                f"{race.ratio:.2f}x" if isinstance(race, Timing) else race,
                str(len(result.actions)),
                f"{result.counts.seconds:.0f} s",
                f"{100 * overhead(result.counts.seconds, watched.seconds):.0f} %",
            )
        )
    return Table(
        f"Beam search, {budget} evaluations, one thread: speedup of the best verified program",
        ("workload", "over root", "over default schedule", "over torch", "steps", "search", "overhead"),
        tuple(rows),
    )


def fuzzed(seed: int, budget: int) -> Table:
    """Send random programs and mutated texts through parser, verify, lowering and the interpreter."""
    with progress("fuzz", budget) as show:
        outcome = fuzz.fuzz(seed, budget, lambda text: click.echo(text, err=True), show)
    rows = tuple((name, str(count)) for name, count in outcome.items())
    return Table(f"Fuzzing, {budget} programs and {budget} texts", ("what", "count"), rows)


def walked(seed: int, budget: int, log: Path | None = None) -> Table:
    """Take random legal actions over generated programs and patterns, and check every step."""
    with progress("actions", budget) as show:
        tally = walks.walks(budget, seed, log, show)
    for failure in tally.failures:
        click.echo(f"walk {failure.number}, {'; '.join(failure.actions)}: {failure.failure}", err=True)
    rows = [(name, str(tally.actions[name])) for name in REGISTRY]
    rows += [("all", str(tally.actions.total())), ("wrong", str(len(tally.failures)))]
    return Table(f"Random legal actions, {tally.walks} walks, seed {seed}", ("strategy", "actions"), tuple(rows))


def examined(seed: int, budget: int) -> Table:
    """Apply every strategy to the shipped workloads in every float dtype; build and verify what comes out."""
    suites = workloads.LIGHT
    total = len(census.DTYPES) * sum(len(workloads.names(suite)) for suite in suites)
    with progress("census", total) as show:
        found = census.census(suites, seed, show)
    rows = []
    for name, row in found.items():
        for line in row.wrong:
            click.echo(f"wrong: {line}", err=True)
        verified = " ".join(f"{row.verified[dtype]} {dtype}" for dtype in census.DTYPES if row.verified[dtype])
        refused = " ".join(f"{count} {code}" for code, count in sorted(row.refused.items()))
        rows.append((name, str(len(row.applies)), verified or "-", str(len(row.wrong)), refused or "-"))
    count = sum(len(workloads.names(suite)) for suite in suites)
    return Table(
        f"Strategies on the {count} shipped workloads",
        ("strategy", "applies to", "verified", "wrong", "refused"),
        tuple(rows),
    )


PARTS: dict[str, Callable[[int, int], Table]] = {
    "import": imports,
    "steps": steps,
    "evaluations": evaluations,
    "search": searches,
    "fuzz": fuzzed,
    "actions": walked,
    "strategies": examined,
}
"""The parts by name: each takes a seed and a budget (evaluations or programs; the first two need none)."""

_LONG = ("fuzz", "actions", "strategies")
_BUDGETS = {"search": 64, "evaluations": 64, "fuzz": 10_000, "actions": 100_000}


@verb("bench")
@click.argument("parts", nargs=-1, type=click.Choice(tuple(PARTS)))
@click.option("--budget", type=click.IntRange(min=1), help="Evaluations or programs of a part, in place of its own.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where `actions` notes its walks, to go on from there the next time.",
)
def bench(parts: Sequence[str], budget: int | None, seed: int, log: Path | None) -> Answer:
    """Measure PARTS (default: all but the long fuzz, actions and strategies) and print their tables."""
    chosen = parts or tuple(name for name in PARTS if name not in _LONG)
    tables = list(_measured(chosen, budget, seed, log))
    return Answer("\n".join(table.text() for table in tables), {"tables": [table.to_json() for table in tables]})


def _measured(parts: Sequence[str], budget: int | None, seed: int, log: Path | None) -> Iterator[Table]:
    for name in parts:
        measure = functools.partial(walked, log=log) if name == "actions" else PARTS[name]
        yield measure(seed, budget or _BUDGETS.get(name, 0))
