"""What a strategy is, and the registry that everything else derives from.

The catalogue, the command listing, the action menu, the tool schema for models and the property tests
are all read off `REGISTRY`; nothing else knows a strategy by name.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar

from envs.common.actions import STOP, Action
from envs.leir_env.ir import Block, Loop, Program
from envs.leir_env.legality import touched
from envs.leir_env.tree import Node, Path, declarations, loops_below, sites, sites_by_path
from envs.leir_env.verify import RULES


class Level(StrEnum):
    """Where a strategy acts (Step-TP's four levels)."""

    GRAPH = "graph"
    OPERATOR = "operator"
    MEMORY = "memory"
    MATH = "math"


class Exactness(IntEnum):
    """How the values of a result may differ from the original's. Along a trace the worst one counts."""

    EXACT = 0
    """Bitwise equal."""
    REASSOCIATES = 1
    """Equal over the reals: floating-point operations run in another order, or others of the same value."""
    APPROXIMATE = 2
    """Other arithmetic within a stated bound; needs opting in."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an action does not apply here: a value, never an exception."""

    code: str
    """The rule: unknown_strategy, unknown_site, wrong_parameter, no_effect, structure, dependence, domain (a sign, a
    zero or an overflow that is not excluded), extent, kind, scope, size or approximate."""
    sentence: str
    """Names the thing, the rule and the number."""

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A typed parameter with a finite menu; the text form may name any value that `why_not` accepts."""

    name: str
    meaning: str
    choices: tuple[str, ...] = ()
    """The values it can take; empty where they depend on the site (a positive integer, or see `spelling`)."""
    spelling: str = ""
    """A regular expression that values match in full, where they are no integers."""
    example: str = ""
    """What such a value looks like, for messages."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rewritten program and how exact the rewriting is."""

    program: Program
    exactness: Exactness = Exactness.EXACT


class Strategy(ABC):
    """A named rewriting of programs. Instances have no state.

    A subclass states its meaning, *Requires* and *Rewrite* in its docstring, and implements the four
    methods. `rewrite` may assume that `why_not` returned None and that sites and arguments fit.
    """

    name: ClassVar[str]
    level: ClassVar[Level]
    site_kinds: ClassVar[tuple[str, ...]]
    """What each site is: "loop", "equation", "statement" (either) or "tensor"."""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    targets: ClassVar[tuple[str, ...]] = ("llvm", "cuda")
    menu: ClassVar[int] = 32
    """Indices that it owns in the menu of LEIR-v0: about twice what it offers at most on a shipped workload."""
    approximate: ClassVar[bool] = False
    """Does it exchange arithmetic for other arithmetic? Then it is offered to those who ask for that only."""
    local: ClassVar[bool] = False
    """Does what it offers within a top-level nest depend on that nest alone? Then its menu is cached by nest."""

    @abstractmethod
    def candidates(self, program: Program) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yield sites and parameters worth trying, in canonical order: syntactic, cheap, a superset of what applies."""

    @abstractmethod
    def why_not(self, program: Program, site: tuple[str, ...], args: tuple[str, ...]) -> Refusal | None:
        """Say why it does not apply, or return None. Sites exist and arguments parse."""

    @abstractmethod
    def rewrite(self, program: Program, site: tuple[str, ...], args: tuple[str, ...]) -> Outcome:
        """Return the new program: pure, and total where `why_not` is None."""

    @abstractmethod
    def rationale(self, program: Program, site: tuple[str, ...], args: tuple[str, ...]) -> str:
        """Say what changes and why it may pay, in facts of this program: extents, bytes, reuse."""


REGISTRY: dict[str, Strategy] = {}
"""Every strategy by name, in the order of levels and registration."""


def register(cls: type[Strategy]) -> type[Strategy]:
    """Add a strategy to the registry (a class decorator)."""
    if cls.name in REGISTRY:
        raise ValueError(f"strategy {cls.name} is registered twice")
    REGISTRY[cls.name] = cls()
    return cls


def refusal(program: Program, action: Action, target: str | None = None, approximate: bool = False) -> Refusal | None:
    """Say why `action` does not apply to `program`, or return None. Total for any action.

    With a target, strategies that are not for it are refused too, and unless `approximate`, those that make
    results less exact.
    """
    if action == STOP:
        return None
    strategy = REGISTRY.get(action.name)
    if strategy is None:
        return Refusal("unknown_strategy", f"no strategy is called {action.name}{_similar(action.name, REGISTRY)}")
    if target is not None and target not in strategy.targets:
        return Refusal("scope", f"{strategy.name} is for {' and '.join(strategy.targets)}, not {target}")
    if strategy.approximate and not approximate:
        return Refusal(
            "approximate", f"{strategy.name} makes results less exact, and nobody asked for approximate ones"
        )
    return (
        _wrong_sites(program, strategy, action)
        or _wrong_arguments(strategy, action)
        or why_not(strategy, program, action.sites, action.args)
    )


def why_not(strategy: Strategy, program: Program, site: tuple[str, ...], args: tuple[str, ...]) -> Refusal | None:
    """Say why a strategy does not apply, or return None. Sites exist and arguments parse.

    Kernels obey rules that cut across strategies, so that what becomes of bound loops is looked at as a whole.
    """
    refused = strategy.why_not(program, site, args)
    if refused is not None or not _is_bound(program):
        return refused
    after = strategy.rewrite(program, site, args).program
    for rule in _KERNEL_RULES:
        for sentence, *_ in RULES[rule].check(after, "cuda"):
            return Refusal("kind", f"{strategy.name} {', '.join(site)}: {sentence}")
    return None


_KERNEL_RULES = ("scope", "kind", "axis", "storage", "promise")


@functools.lru_cache(maxsize=4096)
def _is_bound(program: Program) -> bool:
    return any(loop.axis is not None for statement in program.body for loop in loops_below(statement))


def apply(program: Program, action: Action) -> Outcome:
    """Apply a legal action, approximate or not. Raises ValueError with the refusal's sentence if it is not legal."""
    if action == STOP:
        return Outcome(program)
    problem = refusal(program, action, approximate=True)
    if problem is not None:
        raise ValueError(f"{action}: {problem}")
    return REGISTRY[action.name].rewrite(program, action.sites, action.args)


@functools.lru_cache(maxsize=8192)
def legal(program: Program, target: str = "llvm", approximate: bool = False) -> tuple[Action, ...]:
    """Every action of the menu that applies, in canonical order, `STOP` first.

    Strategies that make results less exact are in it if `approximate`.
    """
    return (STOP, *_offers(program, REGISTRY.values(), target, approximate))


def _offers(program: Program, strategies: Iterable[Strategy], target: str, approximate: bool) -> Iterator[Action]:
    for strategy in strategies:
        if target not in strategy.targets or (strategy.approximate and not approximate):
            continue
        if not strategy.local:
            for site, args in strategy.candidates(program):
                if why_not(strategy, program, site, args) is None:
                    yield Action(strategy.name, site, args)
            continue
        names = sites_by_path(program)
        for position, alone in enumerate(nests(program)):
            for places, args in _local_offers(strategy.name, alone):
                at = tuple(place if isinstance(place, str) else names[position, *place] for place in places)
                yield Action(strategy.name, at, args)


@functools.lru_cache(maxsize=1024)
def nests(program: Program) -> tuple[Program, ...]:
    """Each top-level nest as a program of its own, with the tensors it mentions."""
    found = []
    for statement in program.body:
        used = touched(statement)
        tensors = tuple(tensor for tensor in program.tensors if tensor.name in used)
        found.append(Program(Block((statement,), tensors)))
    return tuple(found)


@functools.lru_cache(maxsize=16384)
def _local_offers(name: str, alone: Program) -> tuple[tuple[tuple[Path | str, ...], tuple[str, ...]], ...]:
    """What a local strategy offers in a single nest: tensors by name, the other sites by their paths below the nest."""
    strategy, named = REGISTRY[name], sites(alone)
    kinds = strategy.site_kinds
    return tuple(
        (tuple(site if kind == "tensor" else named[site].path[1:] for site, kind in zip(at, kinds, strict=True)), args)
        for at, args in strategy.candidates(alone)
        if why_not(strategy, alone, at, args) is None
    )


def counted(number: int, noun: str) -> str:
    """`1 element`, `2 elements`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rationale(program: Program, action: Action) -> str:
    """The reasons for a legal action, in facts of this program."""
    if action == STOP:
        return "No further change is made."
    return REGISTRY[action.name].rationale(program, action.sites, action.args)


def _wrong_sites(program: Program, strategy: Strategy, action: Action) -> Refusal | None:
    expected = strategy.site_kinds
    if len(action.sites) != len(expected):
        return Refusal(
            "unknown_site",
            f"{strategy.name} takes {len(expected)} sites ({', '.join(expected)}), got {len(action.sites)}",
        )
    known = site_names(program)
    for name, kind in zip(action.sites, expected, strict=True):
        if name not in known[kind]:
            return Refusal("unknown_site", f"this program has no {kind} {name}{_similar(name, known[kind])}")
    return None


def _wrong_arguments(strategy: Strategy, action: Action) -> Refusal | None:
    if len(action.args) != len(strategy.parameters):
        names = ", ".join(parameter.name for parameter in strategy.parameters) or "none"
        return Refusal(
            "wrong_parameter",
            f"{strategy.name} takes {len(strategy.parameters)} parameters ({names}), got {len(action.args)}",
        )
    for value, parameter in zip(action.args, strategy.parameters, strict=True):
        if parameter.choices and value not in parameter.choices:
            return Refusal("wrong_parameter", f"{parameter.name} is one of {', '.join(parameter.choices)}, not {value}")
        if parameter.spelling and re.fullmatch(parameter.spelling, value) is None:
            return Refusal("wrong_parameter", f"{parameter.name} is spelled like {parameter.example}, not {value}")
        integer = not parameter.choices and not parameter.spelling
        if integer and not (value.isdecimal() and int(value[:12]) > 0 and len(value) < 12):
            return Refusal("wrong_parameter", f"{parameter.name} is a positive integer, not {value}")
    return None


@functools.lru_cache(maxsize=4096)
def site_names(program: Program) -> dict[str, dict[str, Node | None]]:
    """The sites of each kind by name: loops, equations, statements (both), tensors."""
    named = sites(program)
    return {
        "loop": {name: node for name, node in named.items() if isinstance(node.statement, Loop)},
        "equation": {name: node for name, node in named.items() if not isinstance(node.statement, Loop)},
        "statement": dict(named),
        "tensor": dict.fromkeys(declarations(program)),
    }


def _similar(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
