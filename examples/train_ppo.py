"""PPO with masks on LEIR-v0 under the cost model, against a random legal policy.

Needs `pip install 'leirgym[rl,plot]'`.

python examples/train_ppo.py 16384 ppo.npz docs/ppo.json docs/ppo.png
"""

import json
import math
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from agents.rl.network import Policy
from agents.rl.training import Course, returns, train
from envs.leir_env.problem import LeirProblem

TRAINED = ("softmax", "matmul_256", "layernorm", "gelu")
HELD_OUT = ("rmsnorm", "linear_relu")
EVERY = 2048
"""Steps between two evaluations."""

COURSE = Course("LEIR-v0", {"reward": "model", "observation": "dict", "max_steps": 8}, option="workload", tasks=TRAINED)


def greedy(policy: Policy) -> dict[str, float]:
    """The return of the likeliest choices, by workload."""
    return {task: returns(policy, COURSE, task)[0] for task in (*TRAINED, *HELD_OUT)}


def by_chance(episodes: int = 32) -> dict[str, float]:
    """The mean return of random legal choices, by workload."""
    rng = np.random.default_rng(0)
    return {task: float(np.mean(returns(None, COURSE, task, episodes, rng))) for task in (*TRAINED, *HELD_OUT)}


def default_schedule(task: str) -> float:
    """What the default schedule would return, were it one action."""
    problem = LeirProblem(task)
    return -problem.estimate(problem.root)


def main(steps: str, model: str, figures: str, plot: str) -> None:
    """Train, evaluate, and write the policy, the figures and the curve."""
    curve: list[dict[str, Any]] = []

    def listen(taken: int, mean: float, policy: Policy) -> None:
        point: dict[str, Any] = {"steps": taken, "training": None if math.isnan(mean) else round(mean, 3)}
        if taken % EVERY == 0:
            point["greedy"] = {task: round(value, 3) for task, value in greedy(policy).items()}
        curve.append(point)
        print(point, flush=True)

    started = time.perf_counter()
    policy = train(COURSE, int(steps), seed=0, listen=listen)
    seconds = time.perf_counter() - started
    policy.save(Path(model))
    rows = {
        "random": by_chance(),
        "greedy": greedy(policy),
        "default schedule": {task: default_schedule(task) for task in (*TRAINED, *HELD_OUT)},
    }
    report = {
        "what": "returns on LEIR-v0: log of the predicted speedup over the root; nothing was measured",
        "course": {**COURSE.arguments, "workloads": TRAINED, "held out": HELD_OUT, "seed": 0},
        "seconds": round(seconds),
        "versions": {name: version(name) for name in ("sb3-contrib", "torch", "gymnasium", "numpy")},
        "returns": {name: {task: round(value, 3) for task, value in row.items()} for name, row in rows.items()},
        "curve": curve,
    }
    Path(figures).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draw(report, plot)


def draw(report: dict[str, Any], path: str) -> None:
    """Return against steps: in training, and of the likeliest choices."""
    from matplotlib.figure import Figure

    def mean(of: dict[str, float], tasks: tuple[str, ...]) -> float:
        return float(np.mean([of[task] for task in tasks]))

    figure = Figure((7, 4), layout="constrained")
    axes = figure.subplots()
    curve, chance = report["curve"], report["returns"]["random"]
    told = [(point["steps"], point["training"]) for point in curve if point["training"] is not None]
    axes.plot(*zip(*told, strict=True), label="in training, drawn")
    checked = [point for point in curve if "greedy" in point]
    for tasks, name, colour in ((TRAINED, "trained on", "tab:orange"), (HELD_OUT, "held out", "tab:green")):
        steps = [point["steps"] for point in checked]
        axes.plot(
            steps, [mean(point["greedy"], tasks) for point in checked], "o-", color=colour, label=f"greedy, {name}"
        )
        axes.axhline(mean(chance, tasks), color=colour, linestyle=":", label=f"random, {name}")
    axes.set(xlabel="steps", ylabel="return: log predicted speedup over the root")
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["16384", "ppo.npz", "ppo.json", "ppo.png"]))
