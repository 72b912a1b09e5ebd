"""LEIR Gym: importing this registers the environments; `main` is the command line.

import gymnasium as gym, leirgym
env = gym.make("LEIR-v0", workload="softmax")
"""

from __future__ import annotations

from pathlib import Path

import envs

if Path(envs.__file__ or "").parent.parent != Path(__file__).parent:
    raise ImportError(
        f"package envs comes from {envs.__file__}, which is not LEIR Gym's: uninstall the other "
        f"distribution that has a package of that name, or use an environment of its own"
    )

VERBS: dict[str, tuple[str, str]] = {
    "list": ("envs.leir_env.cli:list_workloads", "Name the shipped workloads by suite."),
    "show": ("envs.leir_env.cli:show_program", "Print a program as LEIR, TIR, or generated code."),
    "strategies": ("envs.leir_env.cli:list_strategies", "List the strategies, or explain one."),
    "legal": ("envs.leir_env.cli:legal_actions", "List the legal actions, or say why one is refused."),
    "apply": ("envs.leir_env.cli:apply_actions", "Apply actions and print the program."),
    "optimize": ("agents.cli:optimize", "Search for a faster program, verified and timed."),
    "agents": ("agents.cli_agents:agents", "List the agents and the proposers."),
    "compare": ("agents.cli_compare:compare", "Run agents side by side, at equal evaluations."),
    "verify": ("envs.leir_env.cli:verify_candidate", "Check a program against a workload, or a trace file."),
    "replay": ("envs.leir_env.cli:replay_trace", "Apply the actions of a trace file step by step."),
    "bench": ("agents.bench:bench", "Measure what the README states."),
    "tokens": ("envs.leir_env.tokens:count_tokens", "Count the tokens of programs as LEIR, TIR and CUDA."),
    "spaces": ("envs.autotune_env.cli:spaces", "List, show, convert and plot tuning spaces."),
    "record": ("envs.autotune_env.record:record_spaces", "Measure the project's kernels here, as tuning spaces."),
    "tune": ("envs.autotune_env.tune:tune_kernel", "Tune a kernel of the project here, through Kernel Tuner."),
    "score": ("envs.autotune_env.scoring:score_optimizers", "Score optimisers on tuning spaces, or recorded runs."),
    "design": ("training.design_optimizer:design", "Evolve an optimiser for tuning spaces."),
    "workloads": ("datagen.workloads.cli:workloads", "Regenerate the shipped workloads from PyTorch."),
    "doctor": (
        "envs.common.doctor:doctor",
        "Print versions, tools, devices, the store, and where packages are.",
    ),
}
"""Every verb of the command line: `module:command`, imported when called, and a line of help."""


def main() -> None:
    """Run the command line."""
    import gc

    from envs.common.console import Verbs

    gc.set_threshold(50_000, 20, 20)  # a search makes immutable values by the million, and hardly a cycle
    Verbs(VERBS, name="leirgym", help="Tensor-program optimisation as reinforcement learning.")()


if __name__ == "__main__":
    main()
