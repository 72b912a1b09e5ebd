"""Who proposes programs: a grammar of building blocks, or a language model.

A designer is given an operator and the parents it works on, best first, and answers with a draft. What a draft is
worth, the sandbox says; a designer may answer with any text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from training.design import grammar
from training.design.archive import Record
from training.design.rendering import describe, render

Message = Mapping[str, str]
"""`role` and `content`."""

Complete = Callable[[Sequence[Message]], str]
"""A language model: from a conversation to its answer."""

OPERATORS: Mapping[str, int] = {"new": 0, "refine": 1, "simplify": 1, "cross": 2}
"""How many parents each operator works on."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A program that is proposed."""

    source: str
    idea: str
    design: Mapping[str, Any] | None = None


class Designer(Protocol):
    """Proposes programs."""

    @property
    def name(self) -> str:
        """What archives call it."""
        ...

    def propose(self, operator: str, parents: Sequence[Record], best: Sequence[Record], rng: Random) -> Draft:
        """A program by an operator of `OPERATORS`; `best` are the survivors so far."""
        ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """Composes programs from the building blocks of `grammar`."""

    name: str = "grammar"

    def propose(self, operator: str, parents: Sequence[Record], best: Sequence[Record], rng: Random) -> Draft:
        designs = [dict(parent.design) for parent in parents if parent.design is not None]
        design = _OPERATIONS[operator](designs, rng) if len(designs) == OPERATORS[operator] else grammar.fresh(rng)
        design = grammar.effective(design)
        return Draft(render(design), describe(design), design)


_OPERATIONS: Mapping[str, Callable[[list[grammar.Design], Random], grammar.Design]] = {
    "new": lambda designs, rng: grammar.fresh(rng),
    "refine": lambda designs, rng: grammar.refine(designs[0], rng),
    "simplify": lambda designs, rng: grammar.simplify(designs[0], rng),
    "cross": lambda designs, rng: grammar.refine(grammar.cross(designs[0], designs[1], rng), rng),
}


ROLE = """You design optimisers for auto-tuning GPU kernels. You write short, readable Python."""

CONTRACT = """Write one optimiser: a class that derives from Searcher and has a method search(self, view), a generator.
It yields rows (numbers of configurations) and is sent the loss of each, less is better, float("inf") if it failed:

{example}
Evaluations are expensive and their number is small; the time of your own code is limited, too. What was tried before
costs nothing, and brings nothing. view offers:
  view.size, view.spent (part of the budget spent, 0 to 1), view.rng (a random.Random)
  view.losses, view.seconds (dicts of tried rows), view.best (row or -1), view.elite(n) (best rows, best first)
  view.sample(), view.samples(n), view.fresh() (an untried row)
  view.neighbours(row, kind), view.neighbour(row, kind): kind "hamming", "step" or "adjacent"
  view.indices(row) (tuple of value numbers), view.row(indices) (-1 if not allowed), view.repair(indices)
  view.cross(a, b) (each value from either)
  view.predict(rows, k) (k-NN mean loss), view.effects(rows) (additive model; less is better)
  accepts(rng, new, old, temperature) (Metropolis on the relative loss)
and a Gaussian process: process = Process(view, reach=1.0, jump=0.25, power=1.0, noise=0.001, fitted=True, room=200,
candidates=1500) has process.spread(n) (rows far apart) and process.choose(caution=0.0, thrift=0.0) (the untried row of
greatest expected improvement; thrift weighs seconds).
It may import only math, itertools, collections, bisect, heapq, functools, dataclasses, statistics, from
envs.autotune_env.optimizers.search: Search, Searcher, View, accepts, FAILED, and from
envs.autotune_env.optimizers.process: Process. It scores by how fast the best loss falls
over the whole budget, compared with random search (0) and the optimum (1), on all of several kernels and devices.
Answer with one line that begins with "Idea:", then the program in one ```python block."""

EXAMPLE: grammar.Design = grammar.SIMPLEST | {"neighbours": 8, "elite": 2, "k": 1, "hot": 0.1, "restart": "kick"}

TASKS: Mapping[str, str] = {
    "new": "Invent an optimiser that differs in its idea from those above.",
    "refine": "Refine the strategy of this optimiser to improve its scores:\n\n{0}",
    "simplify": "Simplify this optimiser, and keep or improve its scores:\n\n{0}",
    "cross": "Combine the ideas of these two optimisers into a better one:\n\n{0}\n\n{1}",
}


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """Asks a language model, and tells it how its earlier programs did."""

    complete: Complete
    name: str
    about: str = ""
    """What it is told about the spaces; see `briefing`."""

    def propose(self, operator: str, parents: Sequence[Record], best: Sequence[Record], rng: Random) -> Draft:
        return read_answer(self.complete(self.conversation(operator, parents, best)))

    def conversation(self, operator: str, parents: Sequence[Record], best: Sequence[Record]) -> list[Message]:
        """What is asked."""
        example = render(grammar.SIMPLEST | {"neighbours": 8, "elite": 2, "k": 1, "hot": 0.1, "restart": "kick"})
        parts = [CONTRACT.format(example=example), self.about]
        if best:
            parts.append("Optimisers so far:\n" + "\n".join(f"- {one.idea} {verdict(one)}" for one in best))
        parts.append(TASKS[operator].format(*map(shown, parents)))
        text = "\n\n".join(part for part in parts if part)
        return [{"role": "system", "content": ROLE}, {"role": "user", "content": text}]


def verdict(record: Record) -> str:
    """How a program did, in a few words: the score and its interval, or why it failed."""
    if record.result.failure:
        return f"failed, {record.result.failure}"
    last = record.result.rungs[-1]
    return f"scored {last.mean:.3f} [{last.low:.3f}, {last.high:.3f}] in {last.repeats} runs"


def shown(record: Record) -> str:
    """A program with its score on each space, or its error."""
    spaces = ", ".join(f"{name} {value:.3f}" for name, value in (record.result.spaces or {}).items())
    return f"```python\n{record.source}```\nIt {verdict(record)}{': ' if spaces else ''}{spaces}."


def read_answer(text: str) -> Draft:
    """The program in an answer: the first fenced block, or all of the text if there is none."""
    block = re.search(r"```(?:python)?[ \t]*\n(.*?)```", text, re.DOTALL)
    idea = re.search(r"^\W*Idea:\W*(.+)$", text, re.MULTILINE)
    source = (block.group(1) if block else text).strip() + "\n"
    return Draft(source, idea.group(1).strip()[:200] if idea else "no idea was stated")
