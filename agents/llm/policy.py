"""One protocol for language models, wherever they run: conversations in, completions out.

A policy never raises for what a model or a server does. A completion that did not come is a completion with a
`failure`, a sentence after a code: timeout, connection, status, malformed, size, window, budget or unavailable.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

MAX_ANSWER_CHARACTERS = 50_000
"""What is read of an answer; a longer one is refused unread."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


Conversation = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """The answers that may be decoded: one to `most` of `choices`, one a line.

    A back end that can't constrain decoding ignores it; whoever reads the answer checks it in any case.
    """

    choices: tuple[str, ...]
    most: int = 1

    def __post_init__(self) -> None:
        if not self.choices or self.most < 1:
            raise ValueError(f"a constraint admits at least 1 of at least 1 choice, got {self.most}")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    count: int = 1
    """Answers to each conversation."""
    temperature: float = 0.3
    """0 is greedy decoding."""
    max_tokens: int = 512
    """The longest answer."""
    seed: int | None = None
    """Makes draws repeatable, as far as the back end can."""
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        if min(self.count, self.max_tokens) < 1:
            raise ValueError(f"count and max_tokens are at least 1, got {self.count} and {self.max_tokens}")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"a temperature is at least 0 and finite, got {self.temperature}")

    @property
    def repeatable(self) -> bool:
        """Whether the same request should get the same answer."""
        return self.temperature == 0 or self.seed is not None


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer, or why there is none."""

    text: str = ""
    failure: str = ""
    """`code: sentence` where no answer came; the text is then empty."""
    prompt_tokens: int = 0
    """Of the whole request; the further answers to the same conversation count none."""
    completion_tokens: int = 0
    seconds: float = 0.0
    """From request to answer."""
    cached: bool = False
    """Remembered, not computed: it cost nothing now."""


class Policy(Protocol):
    """A model that answers conversations."""

    @property
    def name(self) -> str:
        """The model, as transcripts and caches name it: equal names mean equal answers."""
        ...

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> Sequence[tuple[Completion, ...]]:
        """Answer each conversation `sampling.count` times."""
        ...


WINDOW = "window"
"""Code of the failure of a prompt that is longer than the model reads."""

_TOO_LONG = re.compile(r"context[ _](length|size|window)", re.IGNORECASE)


def says_too_long(error: str) -> bool:
    """Whether an error of a server or an engine, its message or its code, is about a prompt that is too long."""
    return _TOO_LONG.search(error) is not None


def window(policy: Policy) -> int | None:
    """Tokens of prompt and answer together that a model reads, where its back end knows."""
    found: int | None = getattr(policy, "window", None)
    return found


class Unavailable(RuntimeError):
    """A back end or a model that is not there; the message says how to get it."""


def failed(failure: str, sampling: Sampling, seconds: float = 0.0) -> tuple[Completion, ...]:
    """The same failure for every answer to a conversation."""
    return (Completion(failure=failure, seconds=seconds),) * sampling.count


def digest(name: str, conversation: Conversation, sampling: Sampling) -> str:
    """Identifies a request: model, messages and sampling."""
    content = [name, [asdict(message) for message in conversation], asdict(sampling)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


Answerer = Callable[[Conversation], str]


@dataclass(slots=True)
class Scripted:
    """Gives prepared answers in turn, or those of a function; when they run out, it fails. For tests and examples."""

    answers: Sequence[str] | Answerer
    name: str = "scripted"
    asked: list[Conversation] = field(default_factory=list)
    """Every conversation so far."""
    _given: int = 0

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        return [tuple(self._answer(talk) for _ in range(sampling.count)) for talk in conversations]

    def _answer(self, conversation: Conversation) -> Completion:
        self.asked.append(conversation)
        if callable(self.answers):
            return _told(conversation, self.answers(conversation))
        if self._given == len(self.answers):
            return Completion(failure=f"unavailable: the script has {self._given} answers, all of them given")
        self._given += 1
        return _told(conversation, self.answers[self._given - 1])


@dataclass(frozen=True, slots=True)
class Chance:
    """Picks one of the permitted answers at random, without reading: what a model has to beat.

    It needs neither weights nor a network, so that it also serves to try out a command. Where any text is permitted
    it says nothing. The same conversation and seed get the same answer.
    """

    name: str = "chance"

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        return [self._answers(talk, sampling) for talk in conversations]

    def _answers(self, conversation: Conversation, sampling: Sampling) -> tuple[Completion, ...]:
        constraint = sampling.constraint
        if constraint is None:
            return (_told(conversation, ""),) * sampling.count
        rng = np.random.default_rng(int(digest(self.name, conversation, sampling)[:16], 16))
        most = min(constraint.most, len(constraint.choices))
        drawn = (rng.permutation(len(constraint.choices))[:most] for _ in range(sampling.count))
        return tuple(_told(conversation, "\n".join(constraint.choices[n] for n in picked)) for picked in drawn)


def _told(conversation: Conversation, text: str) -> Completion:
    asked = sum(estimate_tokens(message.content) for message in conversation)
    return Completion(text, prompt_tokens=asked, completion_tokens=estimate_tokens(text))


CHARACTERS_A_TOKEN = 1.8
"""Fewer than in prompts about shipped programs (2.4 to 4.3, vocabulary of Qwen); a bare program may have 1.4."""


def estimate_tokens(text: str) -> int:
    """An estimate of the tokens of a prompt, on the high side, whatever the vocabulary."""
    return math.ceil(len(text.encode("utf-8", "replace")) / CHARACTERS_A_TOKEN)
