"""What a language model is told about the spaces it designs an optimiser for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from envs.autotune_env.score import scale
from envs.autotune_env.space import Space


def nothing(spaces: Sequence[Space]) -> str:
    """No word."""
    return ""


def search_space(spaces: Sequence[Space]) -> str:
    """Parameters, restrictions, sizes and budgets; neither the application nor the device, nor anything measured."""
    parts: dict[str, list[str]] = {}
    for space in spaces:
        values = "; ".join(f"{p.name}: {', '.join(map(str, p.values))}" for p in space.domain.parameters)
        rules = "; ".join(space.domain.restrictions) or "not stated"
        text = f"{len(space):,} configurations of {values}. Restrictions: {rules}."
        parts.setdefault(text, []).append(f"{scale(space).evaluations[1]:,}")
    return "\n".join(f"A space has {text} Budgets in evaluations: {', '.join(all_)}." for text, all_ in parts.items())


def application(spaces: Sequence[Space]) -> str:
    """The search space, and which kernels are tuned on which devices for what."""
    lines = [
        f"{space.name}: kernel {space.kernel or space.application} on {space.device or space.name}, problem size "
        f"{space.problem_size or 'not stated'}, {space.objective} in {space.unit}, "
        f"{sum(space.failures.values()) / len(space):.0%} of the configurations fail"
        for space in spaces
    ]
    return "\n".join([search_space(spaces), "The spaces are:", *lines])


INFO: Mapping[str, Callable[[Sequence[Space]], str]] = {
    "none": nothing,
    "space": search_space,
    "application": application,
}
"""The option `--info`."""
