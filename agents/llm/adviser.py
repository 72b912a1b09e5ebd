"""A policy with a formatter: asks about states, reads the answers, and keeps a transcript."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.llm.formatter import Formatter, Reply, View
from agents.llm.policy import WINDOW, Chance, Completion, Conversation, Policy, Sampling, estimate_tokens, failed

TRANSCRIPT = "leirgym-transcript-1"
"""Version of the lines of a transcript."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and one answer, and what was made of it."""

    model: str
    formatter: str
    """Version of the wording."""
    conversation: Conversation
    sampling: Sampling
    completion: Completion
    reply: Reply

    def to_json(self) -> dict[str, Any]:
        """A line of a transcript."""
        return {
            "format": TRANSCRIPT,
            "model": self.model,
            "formatter": self.formatter,
            "messages": [{"role": str(message.role), "content": message.content} for message in self.conversation],
            "sampling": asdict(self.sampling),
            "answer": self.completion.text,
            "failure": self.completion.failure,
            "actions": [str(action) for action in self.reply.actions],
            "rewritten": self.reply.text,
            "refusals": list(self.reply.refusals),
            "prompt_tokens": self.completion.prompt_tokens,
            "completion_tokens": self.completion.completion_tokens,
            "seconds": self.completion.seconds,
            "cached": self.completion.cached,
        }


Log = Callable[[Exchange], None]


def forget(exchange: Exchange) -> None:
    """Keep nothing."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A file to which every exchange is appended, one JSON object a line."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __call__(self, exchange: Exchange) -> None:
        line = json.dumps(exchange.to_json()) + "\n"
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(line)


SPENT = "budget"
"""Code of the failure of a policy that may spend no more tokens."""


class Limited:
    """A policy that answers until so many tokens, of prompts and answers, are spent.

    The answer that passes the limit is given; answers remembered cost nothing.
    """

    def __init__(self, policy: Policy, tokens: int) -> None:
        if tokens < 1:
            raise ValueError(f"a token budget is at least 1, got {tokens}")
        self.policy, self.tokens, self.spent = policy, tokens, 0

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        answers: list[tuple[Completion, ...]] = []
        for conversation in conversations:
            if self.spent >= self.tokens:
                sentence = f"{SPENT}: {self.spent:,} tokens of {self.tokens:,} are spent"
                answers.append(failed(sentence, sampling))
                continue
            (found,) = self.policy.act_batch([conversation], sampling)
            self.spent += sum(c.prompt_tokens + c.completion_tokens for c in found if not c.cached)
            answers.append(found)
        return answers


class Patient:
    """A policy that is not asked again after several failures in a row: a search must not wait for a dead server.

    A prompt that is too long is no failure of the server. `given_up` is told once, in a sentence, when it is left.
    """

    def __init__(self, policy: Policy, patience: int = 3, given_up: Callable[[str], None] = lambda sentence: None):
        if patience < 1:
            raise ValueError(f"patience is at least 1, got {patience}")
        self.policy, self.patience, self.failures, self._given_up = policy, patience, 0, given_up

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        if self.failures >= self.patience:
            sentence = f"unavailable: {self.failures} requests in a row failed, no more are made"
            return [failed(sentence, sampling)] * len(conversations)
        answers = list(self.policy.act_batch(conversations, sampling))
        for found in answers:
            self._count(found)
        return answers

    def _count(self, answers: Sequence[Completion]) -> None:
        bad = all(answer.failure and not overflows(answer) for answer in answers)
        self.failures = self.failures + 1 if bad else 0
        if self.failures == self.patience:
            times = f"{self.patience} requests in a row" if self.patience > 1 else "a request"
            self._given_up(f"{self.name} is not asked any more: {times} failed, {answers[0].failure}")


def overflows(answer: Completion) -> bool:
    """Whether no answer came because the prompt was too long for the model."""
    return answer.failure.startswith(f"{WINDOW}:")


@dataclass(frozen=True, slots=True)
class Adviser:
    """Asks a policy about views of states.

    A prompt that is longer than the model reads is asked again at half its estimated length, until it fits.
    """

    policy: Policy = field(default_factory=Chance)
    formatter: Formatter = field(default_factory=Formatter)
    sampling: Sampling = field(default_factory=Sampling)
    log: Log = forget

    def ask(self, view: View, rng: np.random.Generator) -> tuple[Reply, ...]:
        """The readings of `sampling.count` answers. One that did not come is a refusal."""
        sampling, formatter = self.sampling, self.formatter
        if sampling.seed is None and sampling.temperature > 0:
            sampling = replace(sampling, seed=int(rng.integers(2**31)))
        while not isinstance(asked := formatter.prompt(view), str):
            conversation, seen = asked
            sampling = replace(sampling, constraint=formatter.constraint(seen))
            (completions,) = self.policy.act_batch([conversation], sampling)
            replies = tuple(self._read(completion, seen) for completion in completions)
            for completion, reply in zip(completions, replies, strict=True):
                self.log(Exchange(self.policy.name, formatter.version, conversation, sampling, completion, reply))
            size = sum(estimate_tokens(message.content) for message in conversation)
            if size < 2 or not all(map(overflows, completions)):
                return replies
            formatter = replace(formatter, tokens=size // 2)
        return (Reply(refusals=(asked,)),) * sampling.count

    def _read(self, completion: Completion, view: View) -> Reply:
        if completion.failure:
            return Reply(refusals=(completion.failure,))
        return self.formatter.read(printable(completion.text), view)


def printable(text: str) -> str:
    """The text with a question mark for each character that no program, prompt or file should hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text.replace("\r\n", "\n"))
