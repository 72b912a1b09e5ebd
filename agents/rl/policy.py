"""A trained policy as a search agent: it walks from the root, first by its likeliest choices, then by chance."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents.base import Explorer, Node, Search, new_ones, pipeline
from agents.rl.faces import Face, face_for, vector
from agents.rl.network import Network, Policy, load
from envs.common.actions import STOP, Action
from envs.common.problem import Problem

Choose = Callable[[Search[Any], Node[Any], tuple[Action, ...], float, bool], Action]
"""Picks one of the legal actions of a node, `STOP` first, after a part of the walk; the flag asks for the likeliest."""


@dataclass(frozen=True, slots=True)
class Trained(Explorer):
    """Walks as a trained policy chooses: once by its likeliest choices, then by its probabilities.

    A walk ends where the policy stops, after `depth` steps, or where a state failed; its end is measured. Only
    legal actions can be chosen. Without a model, all of them are equally likely. `solve` raises `PolicyError`, which
    is a ValueError, for a policy that does not act on such problems.
    """

    model: str | Path | Policy | None = None
    """A policy, or the file of one."""
    depth: int | None = None
    """Steps of the longest walk; those of an episode in training, by default, or 12."""
    batch: int = 8
    """States measured at once, while the next are found."""

    def __post_init__(self) -> None:
        if min(self.depth or 1, self.batch) < 1 or self.depth == 0:
            raise ValueError(f"depth and batch are at least 1, got {self.depth} and {self.batch}")

    def _player(self, problem: Problem[Any]) -> tuple[Choose, int]:
        """How choices are made, and the steps of the longest walk."""
        if self.model is None:
            return _by_chance, 12
        policy = self.model if isinstance(self.model, Policy) else load(self.model)
        return _Player(policy.network, face_for(policy, problem)), int(policy.arguments["max_steps"])

    def _explore(self, search: Search[Any]) -> None:
        choose, depth = self._player(search.problem)
        likeliest = itertools.chain((True,), itertools.repeat(False))

        def walk() -> Node[Any]:
            return _walk(search, choose, self.depth or depth, next(likeliest))

        pipeline(search, lambda: new_ones(search, walk, self.batch))


def _walk(search: Search[Any], choose: Choose, depth: int, likeliest: bool) -> Node[Any]:
    node = search.root
    for step in range(depth):
        actions = search.actions(node) if search.fertile(node) else ()
        action = choose(search, node, (STOP, *actions), step / depth, likeliest) if actions else STOP
        if action == STOP:
            break
        node = search.child(node, action)
    return node


def _by_chance(
    search: Search[Any], node: Node[Any], legal: tuple[Action, ...], progress: float, likeliest: bool
) -> Action:
    return legal[search.rng.integers(len(legal))]


@dataclass(frozen=True, slots=True)
class _Player:
    """Asks the network, by way of the face."""

    network: Network
    face: Face

    def __call__(
        self, search: Search[Any], node: Node[Any], legal: tuple[Action, ...], progress: float, likeliest: bool
    ) -> Action:
        offer = self.face.menu.offer(legal)
        seen = vector(self.face.see(search.problem, node.state, progress))
        (index,) = self.network.choose(seen, offer.mask.astype(np.bool_), None if likeliest else search.rng)
        return offer.actions[index]
