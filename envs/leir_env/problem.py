"""LEIR programs as a problem: strategies are the actions, the evaluator is the judge.

Importing this needs neither TVM nor a worker; both wait for the first `evaluate`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from envs.common.actions import Action
from envs.common.evaluation import Check, Evaluation
from envs.leir_env import cost, heuristic, printer, recipes, strategies
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.ir import Program
from envs.leir_env.key import key
from envs.leir_env.oracle import Oracle, interface_problem, iterations
from envs.leir_env.parser import ParseError
from envs.leir_env.schedule import default_schedule
from envs.leir_env.strategies import Exactness
from envs.leir_env.verify import check as verified
from envs.leir_env.verify import load, verify
from envs.leir_env.workloads import Workload
from envs.leir_env.workloads import load as load_workload

if TYPE_CHECKING:
    from envs.common.store import Store
    from envs.common.workers import Pool
    from envs.leir_env.evaluate import Evaluator

MAX_RECOMPUTATION = 16
"""A program that an agent writes runs at most so many times the root's iterations."""

INTERPRETED_ITERATIONS = 2**24
"""What is interpreted of a program that an agent writes: as many input sets as fit, and always one."""

_apply = functools.lru_cache(maxsize=4096)(strategies.apply)
_show = functools.lru_cache(maxsize=2048)(printer.show)


@dataclass(frozen=True, slots=True)
class LeirState:
    """A program and how it came about. Equal states hold the same program, equally exact."""

    program: Program
    exactness: Exactness = Exactness.EXACT
    """The worst along the way."""
    depth: int = field(default=0, compare=False)
    """Moves from the root."""
    rewritten: bool = False
    """Written by an agent, or made from such a program: that it equals the root is unproved."""


class LeirProblem:
    """A workload to make faster.

    `workload` is a shipped name, `leir://suite/name?n=1024`, LEIR text, a `.leir` file or a Program. With
    `check`, every program that a strategy makes is verified (AssertionError names what is wrong); with
    `approximate`, strategies that make results less exact are actions too. Raises `WorkloadError`, `ParseError`
    or `VerifyError` for what is no workload. `threads` are those of a measured kernel.
    """

    def __init__(
        self,
        workload: str | Path | Program | Workload,
        target: str = "llvm",
        store: Store | None = None,
        threads: int = 1,
        pool: Pool | None = None,
        check: bool = False,
        approximate: bool = False,
    ) -> None:
        self.workload = load_workload(workload)
        self.task = self.workload.uri
        self.target = target
        self.root = LeirState(verified(self.workload.program, target))
        self.approximate = approximate
        self.threads = threads
        self._store, self._threads, self._pool, self._check = store, threads, pool, check
        self._evaluator: Evaluator | None = None
        self._evaluations: dict[str, Evaluation] = {}

    @functools.cached_property
    def baseline(self) -> Program:
        """The default schedule of the root, which speedups are over."""
        return default_schedule(self.root.program)

    @functools.cached_property
    def oracle(self) -> Oracle:
        """What the root computes, on input sets."""
        return Oracle(self.root.program)

    def legal(self, state: LeirState) -> tuple[Action, ...]:
        """The strategies that apply, `STOP` first, in the order of the registry, sites and parameters."""
        return strategies.legal(state.program, self.target, self.approximate)

    def refusal(self, state: LeirState, action: Action) -> str | None:
        """Why `action` does not apply, as `code: sentence`, or None."""
        refusal = strategies.refusal(state.program, action, self.target, self.approximate)
        return None if refusal is None else str(refusal)

    def apply(self, state: LeirState, action: Action) -> LeirState:
        """The program after a legal action. Raises ValueError for any other."""
        outcome = _apply(state.program, action)
        if self._check:
            problems = verify(outcome.program, self.target)
            assert not problems, f"{action} on\n{self.show(state)}made\n{printer.show(outcome.program)}{problems[0]}"
        exactness = max(state.exactness, outcome.exactness)
        return LeirState(outcome.program, exactness, state.depth + 1, state.rewritten)

    def read(self, text: str) -> LeirState | str:
        """The state of a program that an agent wrote, or the sentence that says why it is none."""
        try:
            program = load(text, self.target)
        except ParseError as error:
            return f"malformed: {error}"
        difference = interface_problem(program, self.root.program)
        if difference:
            return f"interface: {difference}"
        count, limit = iterations(program), MAX_RECOMPUTATION * iterations(self.root.program)
        if count > limit:
            return f"size: {count:,} iterations; the limit is {MAX_RECOMPUTATION} times the root's, {limit:,}"
        return LeirState(program, Exactness.REASSOCIATES, rewritten=True)

    def key(self, state: LeirState) -> str:
        return key(state.program)

    def show(self, state: LeirState) -> str:
        return _show(state.program)

    def evaluate(self, states: Sequence[LeirState]) -> list[Evaluation]:
        """Build, verify and time; one record for each state.

        A program is evaluated once, however it is reached, so that its reward is always the same.
        """
        keys = [self.key(state) for state in states]
        new = {key: state for key, state in zip(keys, states, strict=True) if key not in self._evaluations}
        for exactness in Exactness:
            batch = {key: state.program for key, state in new.items() if state.exactness is exactness}
            if batch:
                records = self.evaluator.evaluate(tuple(batch.values()), exactness)
                self._evaluations.update(zip(batch, records, strict=True))
        return [self._evaluations[key] for key in keys]

    @property
    def evaluator(self) -> Evaluator:
        """Builds, verifies and times in worker processes; started when first asked for."""
        if self._evaluator is None:
            from envs.leir_env.evaluate import Evaluator

            self._evaluator = Evaluator(
                self.root.program,
                self.target,
                threads=self._threads,
                store=self._store,
                pool=self._pool,
                baseline=self.baseline,
            )
        return self._evaluator

    def interpret(self, state: LeirState) -> tuple[Check, ...]:
        """Compare the program with the root on the oracle's input sets, both under the interpreter.

        Nothing is built. Ends at the first input set that differs; a heavy program is run on fewer sets.
        """
        checks: list[Check] = []
        theirs, ours = self.root.program.inputs, state.program.inputs
        count = max(1, INTERPRETED_ITERATIONS // iterations(state.program))
        for name in self.oracle.sets[:count]:
            values = draw(self.root.program, name, self.oracle.seed)
            inputs = {mine.name: values[root.name] for mine, root in zip(ours, theirs, strict=True)}
            outputs = run(state.program, inputs)
            in_order = tuple(outputs[tensor.name] for tensor in state.program.outputs)
            checks.extend(self.oracle.judge(name, in_order, state.exactness))
            if not all(check.passed for check in checks):
                break
        return tuple(checks)

    def estimate(self, state: LeirState) -> float:
        """The cost model's log of the speedup over the default schedule."""
        return math.log(self._baseline_seconds / cost.estimate(state.program, self._threads))

    @functools.cached_property
    def _baseline_seconds(self) -> float:
        return cost.estimate(self.baseline, self._threads)

    def prior(self, state: LeirState, actions: Sequence[Action]) -> list[float]:
        """How promising rules of thumb think each action is."""
        return heuristic.prior(state.program, tuple(actions))

    def plans(self, state: LeirState) -> tuple[tuple[Action, ...], ...]:
        """The recipes that apply: register tiles, packed panels, fusions, the default schedule."""
        return recipes.plans(state.program)

    def glossary(self) -> str:
        """What LEIR and its strategies mean."""
        from envs.leir_env import glossary

        return glossary.glossary(self.target, self.approximate)

    def machine(self) -> str:
        """Target and threads."""
        from envs.leir_env import glossary

        return glossary.machine(self.target, self._threads)

    def describe(self, state: LeirState, action: Action) -> str:
        """What a legal action changes and why it may pay, in facts of this program."""
        return strategies.rationale(state.program, action)

    def close(self) -> None:
        """End the workers; a later evaluation starts new ones."""
        if self._evaluator is not None:
            self._evaluator.close()
            self._evaluator = None
