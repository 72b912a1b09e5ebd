"""LEIR-v0: a tensor program, made faster by strategies.

    env = gymnasium.make("LEIR-v0", workload="softmax", reward="model")
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(info["legal"]["loop_parallelization(i)"])

Vector environments run in processes too: texts do not go through shared memory, and the prefix makes
processes that are spawned import the registration.

    make = functools.partial(gymnasium.make, "leirgym:LEIR-v0", workload="softmax")
    gymnasium.vector.AsyncVectorEnv([make] * 4, shared_memory=False)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, Space, Text

from envs.common.env import Episode, OptimizationEnv, choose
from envs.common.evaluation import Evaluation, Status
from envs.common.moves import PRINTABLE, Menu, MenuReader, Offer, Reader, RewriteReader, TextReader
from envs.common.problem import Problem
from envs.common.reward import PREDICTED, Judge, Verdict
from envs.leir_env.ir import Program
from envs.leir_env.observe import BOUND, FEATURES, features
from envs.leir_env.parser import MAX_CHARACTERS
from envs.leir_env.problem import LeirProblem, LeirState
from envs.leir_env.render import DRAW, picture
from envs.leir_env.strategies import REGISTRY

if TYPE_CHECKING:
    from envs.common.store import Store

IN_MEMORY = ":memory:"
"""The store that keeps nothing."""

NOT_EXECUTABLE = (
    Status.REJECTED,
    Status.BUILD_FAILED,
    Status.CRASHED,
    Status.TIMEOUT,
    Status.OUT_OF_MEMORY,
)
"""What fails Executable Pass, in Step-TP's terms; Equal Pass fails by these and by a wrong result."""


class LeirEnv(OptimizationEnv[LeirState]):
    """Rewrite a LEIR program by strategies; each step earns the log of the speedup it gained.

    Arguments:
        workload: a shipped name, `leir://suite/name?n=1024`, LEIR text, a `.leir` file or a Program;
            `reset(options={"workload": ...})` takes another for one episode.
        target: `llvm`, the host's processor, or `cuda`.
        reward: `measured` builds, verifies and times each program, once for each key and store;
            `model` asks the cost model, needs no compiler, and proves nothing.
        actions: `menu` takes an index (0 stops, each strategy owns a fixed block), `text` a strategy call,
            `rewrite` a whole program, which is judged for Executable Pass and Equal Pass.
        observation: `text`, or `dict` with text, features, the cost model's estimate, mask and progress.
        max_steps: moves, refused ones included, after which an episode is truncated.
        store: file of measurements; the user's own by default, `:memory:` keeps none.
        threads: that a measured program may use.
        approximate: whether strategies that make results less exact are actions too.

    A refused action costs 0.01 and changes nothing; 20 of them truncate. A failed build, a wrong result, a
    crash or a time-out ends the episode with a return of -10.
    """

    def __init__(
        self,
        workload: str | Path | Program = "softmax",
        target: str = "llvm",
        reward: str = "measured",
        actions: str = "menu",
        observation: str = "text",
        max_steps: int = 16,
        store: str | Path | None = None,
        threads: int = 1,
        approximate: bool = False,
        render_mode: str | None = None,
    ) -> None:
        choose(target, ("llvm", "cuda"), "target")
        choose(actions, READERS, "actions")
        choose(observation, ("text", "dict"), "observation")
        self.actions, self.observation, self.store, self.threads = actions, observation, store, threads
        self.approximate = approximate
        menu = menu_of(target)
        super().__init__(workload, target, menu, READERS[actions](menu), reward, max_steps, render_mode)

    def _open(self, task: Hashable) -> LeirProblem:
        if not isinstance(task, str | Path | Program):
            raise ValueError(f"a workload is a name, a text, a path or a Program, not {type(task).__name__}")
        store = _open_store(self.store) if self.reward == "measured" else None
        return LeirProblem(task, self.target, store, self.threads, approximate=self.approximate)

    def _judge(self, problem: Problem[LeirState]) -> Judge[LeirState]:
        if self.actions == "rewrite" and self.reward == "model":
            assert isinstance(problem, LeirProblem)
            return Interpreted(problem)
        return super()._judge(problem)

    def _observation_space(self) -> Space[Any]:
        text = Text(MAX_CHARACTERS, charset=PRINTABLE)
        if self.observation == "text":
            return text
        return Dict(
            text=text,
            features=Box(0, BOUND, (len(FEATURES),), np.float32),
            estimate=Box(-BOUND, BOUND, (1,), np.float32),
            action_mask=MultiBinary(self.menu.size),
            progress=Box(0, 1, (1,), np.float32),
        )

    def _observe(self, episode: Episode[LeirState], offer: Offer) -> Any:
        text = episode.problem.show(episode.state)
        if self.observation == "text":
            return text
        return {
            "text": text,
            "features": features(episode.state.program),
            "estimate": np.array([episode.problem.estimate(episode.state)], np.float32),
            "action_mask": offer.mask.copy(),
            "progress": np.array([episode.steps / self.max_steps], np.float32),
        }

    def _draw(self, episode: Episode[LeirState], mode: str) -> str | None:
        return DRAW[mode](picture(episode, self.max_steps))

    def _info(self, episode: Episode[LeirState], offer: Offer) -> dict[str, Any]:
        info = super()._info(episode, offer)
        if self.actions == "rewrite":
            accepted = episode.last is None or episode.last.state is not None
            executable = accepted and episode.verdict.status not in NOT_EXECUTABLE
            info["executable_pass"] = executable
            info["equal_pass"] = executable and episode.verdict.status != Status.WRONG
        return info


@dataclass(frozen=True, slots=True)
class Interpreted:
    """Values a program that an agent wrote by the cost model, once it is interpreted and equals the root."""

    problem: LeirProblem

    def __call__(self, state: LeirState) -> Verdict:
        checks = self.problem.interpret(state) if state.rewritten else ()
        failed = [check for check in checks if not check.passed]
        if failed:
            detail = f"{failed[0].name} differs from the root by {failed[0].max_error:.3g} times what is allowed"
            evaluation = Evaluation(self.problem.key(state), Status.WRONG, detail, checks)
            return Verdict(Status.WRONG, None, evaluation, detail)
        return Verdict(PREDICTED, self.problem.estimate(state))


READERS: dict[str, Callable[[Menu], Reader]] = {
    "menu": MenuReader,
    "text": lambda menu: TextReader(),
    "rewrite": lambda menu: RewriteReader(MAX_CHARACTERS),
}
"""The `actions` argument."""


@functools.cache
def menu_of(target: str) -> Menu:
    """The numbering of actions for a target: a block for each of its strategies, in registry order."""
    return Menu({name: strategy.menu for name, strategy in REGISTRY.items() if target in strategy.targets})


def _open_store(where: str | Path | None) -> Store | None:
    if where == IN_MEMORY:
        return None
    from envs.common.settings import settings
    from envs.common.store import Store

    return Store(settings().store if where is None else where)
