"""The dials as a Gymnasium environment: what `OptimizationEnv` needs, and nothing else."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gymnasium.spaces import Space, Text

from envs.common.env import Episode, OptimizationEnv
from envs.common.moves import PRINTABLE, Menu, MenuReader, Offer, TextReader
from tests.common.toy_problem import Dials, ToyProblem

MENU = Menu({"turn": 6, "swap": 3})


class ToyEnv(OptimizationEnv[Dials]):
    def __init__(
        self,
        problem: ToyProblem | None = None,
        reward: str = "measured",
        actions: str = "menu",
        max_steps: int = 16,
        render_mode: str | None = None,
    ) -> None:
        reader = MenuReader(MENU) if actions == "menu" else TextReader()
        self.problem = problem or ToyProblem()
        super().__init__(self.problem.task, "toy", MENU, reader, reward, max_steps, render_mode)

    def _open(self, task: Hashable) -> ToyProblem:
        return self.problem

    def _observation_space(self) -> Space[Any]:
        return Text(100, charset=PRINTABLE)

    def _observe(self, episode: Episode[Dials], offer: Offer) -> str:
        return episode.problem.show(episode.state)

    def _draw(self, episode: Episode[Dials], mode: str) -> str | None:
        text = episode.problem.show(episode.state)
        return print(text) if mode == "human" else text
