"""Models in this process, run by transformers: for small models, and machines without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from agents.llm.policy import WINDOW, Completion, Constraint, Conversation, Sampling, Unavailable, failed
from envs.common.moves import shorten


class Transformers:
    """Generates with a causal language model from a folder (or a name that transformers knows).

    Permitted answers are enforced token by token. Raises `Unavailable` without the package or the model.
    """

    def __init__(self, model: str, device: str | None = None, timeout: float = 120.0) -> None:
        try:
            import torch
            import transformers
        except ModuleNotFoundError as error:
            raise Unavailable(f"a model in this process needs {error.name}: pip install 'leirgym[train]'") from error
        self.name = model
        self._torch = torch
        self._timeout = timeout
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            self._model = transformers.AutoModelForCausalLM.from_pretrained(model).to(self._device).eval()
        except (OSError, ValueError) as error:
            raise Unavailable(f"{model} is no causal language model: {shorten(str(error), 200)}") from error
        self.window: int | None = getattr(self._model.config, "max_position_embeddings", None)

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        return [self._answer(conversation, sampling) for conversation in conversations]

    def _answer(self, conversation: Conversation, sampling: Sampling) -> tuple[Completion, ...]:
        started = time.monotonic()
        tokens, room = self._encoded(conversation), self.window
        if room is not None and len(tokens) + sampling.max_tokens > room:
            sentence = f"{WINDOW}: a prompt of {len(tokens):,} tokens and {sampling.max_tokens:,} more pass {room:,}"
            return failed(sentence, sampling)
        try:
            answers = self._generate(tokens, sampling)
        except (RuntimeError, ValueError) as error:  # out of memory, or a distribution that is none
            return failed(f"unavailable: {shorten(str(error), 200)}", sampling, time.monotonic() - started)
        seconds = time.monotonic() - started
        return tuple(
            Completion(
                self._tokenizer.decode(answer, skip_special_tokens=True),
                "",
                len(tokens) if n == 0 else 0,
                len(answer),
                seconds,
            )
            for n, answer in enumerate(answers)
        )

    def _encoded(self, conversation: Conversation) -> list[int]:
        messages = [{"role": str(message.role), "content": message.content} for message in conversation]
        if self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            encoded: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            encoded = self._tokenizer("\n\n".join(message.content for message in conversation) + "\n\n")["input_ids"]
        return encoded

    def _generate(self, tokens: list[int], sampling: Sampling) -> list[list[int]]:
        torch, end = self._torch, self._tokenizer.eos_token_id
        draws = (
            {"do_sample": True, "temperature": sampling.temperature} if sampling.temperature else {"do_sample": False}
        )
        count = sampling.count if sampling.temperature else 1
        prompt = torch.tensor([tokens], device=self._device)
        allowed = self._allowed(sampling.constraint, len(tokens)) if sampling.constraint else None
        with torch.random.fork_rng(), torch.inference_mode():
            if sampling.seed is not None:
                torch.manual_seed(sampling.seed)
            found = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=sampling.max_tokens,
                max_time=self._timeout,
                num_return_sequences=count,
                pad_token_id=end if self._tokenizer.pad_token_id is None else self._tokenizer.pad_token_id,
                prefix_allowed_tokens_fn=allowed,
                **draws,
            )
        answers: list[list[int]] = found[:, len(tokens) :].tolist()
        return answers * (sampling.count // count)

    def _allowed(self, constraint: Constraint, start: int) -> Callable[[int, Any], list[int]]:
        end = self._tokenizer.eos_token_id

        def encode(text: str) -> list[int]:
            encoded: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            return encoded

        steps = automaton([encode(choice) for choice in constraint.choices], encode("\n"), end, constraint.most)
        return lambda batch, ids: steps(ids[start:].tolist())


def automaton(
    choices: Sequence[Sequence[int]], separator: Sequence[int], end: int, most: int
) -> Callable[[Sequence[int]], list[int]]:
    """The tokens that may follow what was generated: one to `most` choices with separators between, then the end.

    >>> step = automaton([[1], [1, 2]], [7], 0, 2)
    >>> step([]), step([1]), step([1, 7]), step([1, 7, 1, 2])
    ([1], [0, 2, 7], [1], [0])
    """

    def step(generated: Sequence[int]) -> list[int]:
        following: set[int] = set()
        waiting = [(0, 0)]
        met = set(waiting)
        while waiting:
            position, taken = waiting.pop()
            rest = list(generated[position:])
            for choice in choices:
                piece = list(choice)
                if len(rest) < len(piece) and piece[: len(rest)] == rest:
                    following.add(piece[len(rest)])
                if rest[: len(piece)] != piece:
                    continue
                after = rest[len(piece) :]
                if not after:
                    following.add(end)
                if taken + 1 == most:
                    continue
                if after == list(separator[: len(after)]) and len(after) < len(separator):
                    following.add(separator[len(after)])
                if after[: len(separator)] == list(separator):
                    mark = (position + len(piece) + len(separator), taken + 1)
                    if mark not in met:
                        met.add(mark)
                        waiting.append(mark)
        return sorted(following) or [end]

    return step
