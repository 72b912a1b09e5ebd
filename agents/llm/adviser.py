"""A policy with a formatter: asks about states, reads the answers, and keeps a transcript."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agents.llm.formatter import Formatter, Reply, View
from agents.llm.policy import Chance, Completion, Conversation, Policy, Sampling, failed

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
    """A policy that is not asked again after several failures in a row: a search must not wait for a dead server."""

    def __init__(self, policy: Policy, patience: int = 3) -> None:
        if patience < 1:
            raise ValueError(f"patience is at least 1, got {patience}")
        self.policy, self.patience, self.failures = policy, patience, 0

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
            self.failures = self.failures + 1 if all(answer.failure for answer in found) else 0
        return answers


@dataclass(frozen=True, slots=True)
class Adviser:
    """Asks a policy about views of states."""

    policy: Policy = field(default_factory=Chance)
    formatter: Formatter = field(default_factory=Formatter)
    sampling: Sampling = field(default_factory=Sampling)
    log: Log = forget

    def ask(self, view: View, rng: np.random.Generator) -> tuple[Reply, ...]:
        """The readings of `sampling.count` answers. One that did not come is a refusal."""
        asked = self.formatter.prompt(view)
        if isinstance(asked, str):
            return (Reply(refusals=(asked,)),) * self.sampling.count
        conversation, seen = asked
        seed = self.sampling.seed
        if seed is None and self.sampling.temperature > 0:
            seed = int(rng.integers(2**31))
        sampling = Sampling(
            self.sampling.count,
            self.sampling.temperature,
            self.sampling.max_tokens,
            seed,
            self.formatter.constraint(seen),
        )
        (completions,) = self.policy.act_batch([conversation], sampling)
        replies = []
        for completion in completions:
            reply = self._read(completion, seen)
            self.log(Exchange(self.policy.name, self.formatter.version, conversation, sampling, completion, reply))
            replies.append(reply)
        return tuple(replies)

    def _read(self, completion: Completion, view: View) -> Reply:
        if completion.failure:
            return Reply(refusals=(completion.failure,))
        return self.formatter.read(printable(completion.text), view)


def printable(text: str) -> str:
    """The text with a question mark for each character that no program, prompt or file should hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text.replace("\r\n", "\n"))
