"""The functional core that agents search: a problem, not an environment.

Search must fork states, and Gymnasium's `step` can't; so every environment is a pure problem over
immutable states, and its Gymnasium class a thin shell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from envs.common.actions import Action
from envs.common.evaluation import Evaluation

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Problem(Protocol[S]):
    """What an agent may know. States are immutable: to fork one is to keep a reference."""

    @property
    def task(self) -> str:
        """The name or URI that reproduces this problem."""
        ...

    @property
    def root(self) -> S:
        """Where every search starts."""
        ...

    def legal(self, state: S) -> Sequence[Action]:
        """The actions that apply, in canonical order, `STOP` first."""
        ...

    def refusal(self, state: S, action: Action) -> str | None:
        """Why `action` does not apply, as `code: sentence`, or None. Total for any action."""
        ...

    def apply(self, state: S, action: Action) -> S:
        """The next state; pure, and total for a legal action."""
        ...

    def key(self, state: S) -> str:
        """Identity up to renaming."""
        ...

    def show(self, state: S) -> str:
        """The state as text."""
        ...

    def evaluate(self, states: Sequence[S]) -> list[Evaluation]:
        """Build, verify and measure; one record for each state, in order. Never raises for a bad candidate."""
        ...

    def estimate(self, state: S) -> float:
        """A deterministic prediction of the logarithm of the speedup over the baseline."""
        ...

    def prior(self, state: S, actions: Sequence[Action]) -> Sequence[float]:
        """How promising the domain's rules of thumb think each action is: positive weights."""
        ...

    def close(self) -> None:
        """Let go of workers and files; a later call may open them again."""
        ...

    def plans(self, state: S) -> Sequence[Sequence[Action]]:
        """Sequences of legal actions that the domain puts together as one idea; none where it has no ideas."""
        ...


class Describable(Protocol[S_contra]):
    """A problem that can explain itself to a reader who knows nothing of it, such as a language model."""

    def glossary(self) -> str:
        """What the text of a state and the actions mean."""
        ...

    def machine(self) -> str:
        """What states run on, as far as it matters for their speed."""
        ...

    def describe(self, state: S_contra, action: Action) -> str:
        """What a legal action would do to the state, on one line."""
        ...
