"""The catalogue of strategies: what each means, requires and makes of an example, and how often it applies.

Everything is read off the registry, its docstrings, one example file for each strategy, and the shipped suite.
`python -m envs.leir_env.catalogue` completes the examples and writes the page docs/strategies.md.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from pathlib import Path

from envs.common.actions import Action, parse_action
from envs.leir_env import strategies
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY, Level, Strategy
from envs.leir_env.workloads import LIGHT, load, names

EXAMPLES = Path(__file__).parent / "strategies" / "examples"
"""One file for each strategy: it starts with a program, an empty line and an action; `complete` writes the rest."""


@dataclass(frozen=True, slots=True)
class Example:
    """A program, an action, and what comes of it."""

    before: str
    action: str
    reason: str
    exactness: str
    after: str


def example(name: str) -> Example:
    """The example of a strategy."""
    before, middle, after = (EXAMPLES / f"{name}.txt").read_text(encoding="utf-8").split("\n\n")
    action, reason, exactness = middle.split("\n")
    return Example(before, action, reason, exactness, after.rstrip("\n"))


def complete(text: str) -> str:
    """The whole file of the example that `text` starts with."""
    program, rest = text.split("\n\n", 1)
    before, action = parse(program + "\n"), parse_action(rest.split("\n", 1)[0])
    outcome = strategies.apply(before, action)
    reason = strategies.rationale(before, action)
    return f"{show(before)}\n{action}\n{reason}\n{outcome.exactness.name}\n\n{show(outcome.program)}"


def documentation(strategy: Strategy) -> str:
    """Meaning, requirements and rewriting, as its docstring states them."""
    return inspect.getdoc(type(strategy)) or ""


def meaning(strategy: Strategy) -> str:
    """Its meaning in a sentence."""
    return documentation(strategy).partition("\n\n")[0].replace("\n", " ")


def call(strategy: Strategy) -> str:
    """How it is written: `loop_split(loop; factor)`."""
    parameters = ", ".join(parameter.name for parameter in strategy.parameters)
    return f"{strategy.name}({', '.join(strategy.site_kinds)}{f'; {parameters}' if parameters else ''})"


@functools.cache
def applies(name: str) -> tuple[str, ...]:
    """The shipped workloads on whose root a strategy is offered."""
    strategy = REGISTRY[name]
    target = strategy.targets[0]
    return tuple(
        workload
        for workload in names(*LIGHT)
        if any(
            strategies.refusal(load(workload).program, Action(name, site, args), target, True) is None
            for site, args in strategy.candidates(load(workload).program)
        )
    )


def entry(strategy: Strategy) -> str:
    """All there is to say about a strategy, as text."""
    shown = example(strategy.name)
    where = applies(strategy.name)
    few = ", ".join(where[:6]) + (" ..." if len(where) > 6 else "")
    parameters = [f"{p.name}: {p.meaning}{_choices(p.choices)}" for p in strategy.parameters]
    lines = [
        call(strategy),
        f"level: {strategy.level}; targets: {', '.join(strategy.targets)}",
        *parameters,
        "",
        documentation(strategy),
        "",
        f"Example, {shown.exactness.lower()}: {shown.action}",
        "",
        shown.before,
        "",
        "becomes",
        "",
        shown.after,
        "",
        f"Why: {shown.reason}",
        "",
        f"Applies to {len(where)} of the {len(names(*LIGHT))} shipped workloads of the suites {' and '.join(LIGHT)}"
        f"{': ' + few if few else ''}.",
    ]
    return "\n".join(lines)


def page() -> str:
    """The whole catalogue in Markdown."""
    count = len(names(*LIGHT))
    parts = [
        "# Strategies",
        "",
        "Written by `python -m envs.leir_env.catalogue`; `leirgym strategies NAME` shows the same in a terminal.",
        "*Exact* results are equal bit for bit; *reassociates* means equal over the reals, with other roundings;",
        "*approximate* ones stay within a stated bound and need opting in. *Applies to* counts the programs that offer",
        f"it, of {count}: the suites {' and '.join(LIGHT)}.",
        "",
        "| level | strategy | meaning | example is | applies to |",
        "|---|---|---|---|---|",
        *(
            f"| {s.level} | [`{s.name}`](#{s.name}) | {meaning(s)} | {example(s.name).exactness.lower()} "
            f"| {len(applies(s.name))} |"
            for s in by_level()
        ),
    ]
    for strategy in by_level():
        shown = example(strategy.name)
        parts += [
            "",
            f"## {strategy.name}",
            "",
            f"`{call(strategy)}`, {strategy.level} level"
            + ("" if len(strategy.targets) > 1 else f", {strategy.targets[0]} only"),
            "",
            *(f"* `{p.name}`: {p.meaning}" + _choices(p.choices) for p in strategy.parameters),
            *([""] if strategy.parameters else []),
            "```text",
            documentation(strategy),
            "```",
            "",
            f"`{shown.action}` turns",
            "",
            "```text",
            shown.before,
            "```",
            "",
            f"into ({shown.exactness.lower()})",
            "",
            "```text",
            shown.after,
            "```",
            "",
            shown.reason,
        ]
    return "\n".join(parts) + "\n"


def by_level() -> tuple[Strategy, ...]:
    """Every strategy, level by level."""
    return tuple(strategy for level in Level for strategy in REGISTRY.values() if strategy.level is level)


def _choices(choices: tuple[str, ...]) -> str:
    return f"; one of {', '.join(choices)}" if choices else ""


if __name__ == "__main__":
    for file in sorted(EXAMPLES.iterdir()):
        file.write_text(complete(file.read_text(encoding="utf-8")), encoding="utf-8")
    (Path(__file__).parents[2] / "docs" / "strategies.md").write_text(page(), encoding="utf-8")
