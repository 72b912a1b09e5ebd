"""Random legal walks: the baseline that every search must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.base import Explorer, Node, Search, new_ones, pipeline


@dataclass(frozen=True, slots=True)
class RandomWalk(Explorer):
    """Walks from the root along legal actions, each as likely as the others; the end is measured.

    The length of a walk is even from 1 to `depth`; it ends early where nothing is legal or a state failed.
    """

    depth: int = 12
    """Steps of the longest walk."""
    batch: int = 8
    """States measured at once, while the next are found."""

    def __post_init__(self) -> None:
        if min(self.depth, self.batch) < 1:
            raise ValueError(f"depth and batch are at least 1, got {self.depth} and {self.batch}")

    def _explore(self, search: Search[Any]) -> None:
        pipeline(search, lambda: new_ones(search, lambda: self._walk(search), self.batch))

    def _walk(self, search: Search[Any]) -> Node[Any]:
        node = search.root
        for _ in range(search.rng.integers(1, self.depth + 1)):
            actions = search.actions(node) if search.fertile(node) else ()
            if not actions:
                break
            node = search.child(node, actions[search.rng.integers(len(actions))])
        return node
