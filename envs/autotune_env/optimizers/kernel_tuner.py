"""Kernel Tuner's strategies on our spaces, and our optimisers inside Kernel Tuner (`pip install 'leirgym[tune]'`).

    make_optimizer("kernel-tuner", strategy="genetic_algorithm", popsize=20)     # any of its strategies, here
    make_optimizer("kernel-tuner", strategy=MyOptAlg())                          # or one of your own

    tune_kernel(..., strategy=as_strategy(make_optimizer("annealing")))          # any of ours, there

Kernel Tuner's strategies draw from the modules `random` and `numpy.random`, both of which a run seeds. Its `diff_evo`
and `bayes_opt` don't repeat none the less: they take Latin hypercube samples, which have a generator of their own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from envs.autotune_env.domain import NOWHERE, Domain, Parameter, Value
from envs.autotune_env.optimizers import Optimizer
from envs.autotune_env.optimizers.inverted import Evaluate, inverted
from envs.autotune_env.optimizers.search import FAILED, Search, Searcher, View
from envs.autotune_env.oracle import Outcome
from envs.autotune_env.space import Status

IDLE = 10_000
"""A run inside Kernel Tuner ends after so many choices in turn that are known, or are none: they cost nothing there."""

OBJECTIVE = "loss"
"""What Kernel Tuner is told that it minimises."""


def _kernel_tuner(module: str) -> Any:
    """A module of Kernel Tuner. Raises ModuleNotFoundError that says how to get it."""
    try:
        return importlib.import_module(f"kernel_tuner.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kernel_tuner":
            raise
        text = "Kernel Tuner is not installed: pip install 'leirgym[tune]'"
        raise ModuleNotFoundError(text, name="kernel_tuner") from error


UNUSABLE = frozenset({"pyatf_strategies", "nsga2", "nsga3", "brute_force"})
"""Strategies left out: the first fails with every released pyATF (use `PyATF`), two are for several objectives, and
the last only lists."""


def variants() -> tuple[str, ...]:
    """The names of Kernel Tuner's strategies for one objective."""
    return tuple(name for name in _kernel_tuner("interface").strategy_map if name not in UNUSABLE)


class KernelTuner(Searcher):
    """A strategy of Kernel Tuner by name with its options, or an object: an `OptAlg`, or one that has `tune`."""

    __slots__ = ("options", "strategy")

    def __init__(self, strategy: Any = "genetic_algorithm", **options: Any) -> None:
        self.strategy, self.options = strategy, options
        if isinstance(strategy, str) and strategy not in variants():
            raise ValueError(f"a strategy of Kernel Tuner is one of {', '.join(variants())}, not {strategy!r}")

    def search(self, view: View) -> Search:
        return inverted(functools.partial(self._tune, view))

    def _tune(self, view: View, evaluate: Evaluate) -> None:
        interface = _kernel_tuner("interface")
        stop = _kernel_tuner("util").StopCriterionReached
        random.seed(view.rng.getrandbits(32))
        np.random.seed(view.rng.getrandbits(32))
        space = searchspace(view.domain)
        options = interface.Options(
            strategy=self.strategy if isinstance(self.strategy, str) else "custom",
            strategy_options=interface.Options({"max_fevals": view.size, **self.options}),
            objective=[OBJECTIVE],
            objective_higher_is_better=[False],
            tune_params=space.tune_params,
            restrictions=None,
            restrictions_unmodified=None,
            budget=_Budget(view),
            max_fevals=view.size,
            verbose=False,
            simulation_mode=True,
            cache={},
            seed=view.rng.getrandbits(31),
        )
        with contextlib.suppress(stop):
            self._strategy(interface).tune(space, _Runner(view, evaluate, options.cache), options)

    def _strategy(self, interface: Any) -> Any:
        if isinstance(self.strategy, str):
            return interface.strategy_map[self.strategy]
        if hasattr(self.strategy, "tune"):
            return self.strategy
        return _kernel_tuner("strategies.wrapper").OptAlgWrapper(self.strategy)


def searchspace(domain: Domain) -> Any:
    """The domain as Kernel Tuner's `Searchspace`; constants are left out."""
    names = [parameter.name for parameter in domain.parameters]
    rows = [domain.value_of(row) for row in range(len(domain))]
    cache = {str(row): {name: values[name] for name in names} for row, values in enumerate(rows)}
    tunable = {parameter.name: list(parameter.values) for parameter in domain.parameters}
    return _kernel_tuner("searchspace").Searchspace(
        None, None, None, from_cache={"tune_params": tunable, "cache": cache}
    )


class _Budget:
    """Kernel Tuner's budget, which follows ours: our side stops the run."""

    def __init__(self, view: View) -> None:
        self._view = view

    def raise_exception_if_done(self) -> None:
        """Never done."""

    def is_done(self) -> bool:
        return False

    def get_fraction_consumed(self) -> float:
        return self._view.spent

    def get_evaluations_spent(self) -> int:
        return len(self._view.losses)

    def get_evaluations_remaining(self) -> int:
        return self._view.size - len(self._view.losses)


@dataclass(slots=True)
class _Runner:
    """Kernel Tuner's runner: it evaluates configurations."""

    view: View
    evaluate: Evaluate
    cache: dict[str, Any]
    dev: ClassVar[Any] = SimpleNamespace(max_threads=1 << 30, name="recorded")
    """The device, of which some strategies ask the limits."""

    def add_strategy_time(self, seconds: float) -> None:
        """Our clock does not count it."""

    def run(self, configurations: Sequence[Sequence[Any]], options: Any) -> list[dict[str, Any]]:
        return [self._result(configuration) for configuration in configurations]

    def _result(self, configuration: Sequence[Any]) -> dict[str, Any]:
        parameters = self.view.domain.parameters
        row = self.view.row([places(p)[value] for p, value in zip(parameters, configuration, strict=True)])
        loss = self.evaluate(row)
        result: dict[str, Any] = dict(zip((p.name for p in parameters), configuration, strict=True))
        if loss == FAILED:
            result["__error__"] = _kernel_tuner("util").RuntimeFailedConfig()
        else:
            result[OBJECTIVE] = loss
        self.cache[",".join(map(str, configuration))] = result
        return result


@functools.lru_cache(maxsize=1024)
def places(parameter: Parameter) -> Mapping[Value, int]:
    """The position of each value of a parameter."""
    return {value: index for index, value in enumerate(parameter.values)}


def domain_of(space: Any) -> Domain:
    """What Kernel Tuner's `Searchspace` allows, as a domain."""
    tunable = {name: tuple(values) for name, values in space.tune_params.items()}
    parameters = tuple(Parameter(name, values) for name, values in tunable.items() if len(values) > 1)
    constants = {name: values[0] for name, values in tunable.items() if len(values) == 1}
    columns = {name: column for column, name in enumerate(tunable)}
    rows = sorted(tuple(places(p)[row[columns[p.name]]] for p in parameters) for row in space.list)
    return Domain(parameters, np.array(rows, np.uint16), constants, tuple(tunable))


def as_strategy(optimizer: Optimizer, seed: int = 0) -> Any:
    """An optimiser as a strategy for `tune_kernel`; it tunes what Kernel Tuner can run."""
    wrapper = _kernel_tuner("strategies.wrapper")

    class Adapter(wrapper.OptAlg):  # type: ignore[misc, name-defined]
        """Asks ours, evaluates there, and tells ours, until Kernel Tuner stops the run."""

        def __call__(self, func: Any, space: Any) -> tuple[tuple[Any, ...], float]:
            domain = domain_of(space)
            tuner = optimizer.start(domain, np.random.default_rng(seed))
            best: tuple[tuple[Any, ...], float] = ((), math.inf)
            seen: set[int] = set()
            idle = 0
            while len(seen) < len(domain) and idle < IDLE:
                row = tuner.ask()
                idle = idle + 1 if row in seen or row == NOWHERE else 0
                if row == NOWHERE:
                    tuner.tell(row, Outcome(Status.CONSTRAINTS, math.nan, 0.0), func.budget_spent_fraction)
                    continue
                values = tuple(domain.value_of(row).values())
                loss = float(func(values))
                seen.add(row)
                failed = loss == sys.float_info.max
                outcome = Outcome(Status.RUNTIME if failed else Status.CORRECT, math.nan if failed else loss, 0.0)
                best = best if failed or loss >= best[1] else (values, loss)
                tuner.tell(row, outcome, func.budget_spent_fraction)
            return best

    return wrapper.OptAlgWrapper(Adapter())
