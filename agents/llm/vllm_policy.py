"""Models in this process, run by vLLM. A server (`client`) is the better choice where several searches share it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from agents.llm.client import for_vllm
from agents.llm.policy import WINDOW, Completion, Conversation, Sampling, Unavailable, failed, says_too_long
from envs.common.moves import shorten

BATCHED = 16_384
"""Tokens read in one step on a CPU: there vLLM 0.32 dies of a request with a seed that it reads in several."""


class VLLM:
    """Generates with vLLM's engine from a folder or a model's name; `options` go to the engine.

    Raises `Unavailable` without the package or the model.
    """

    def __init__(self, model: str, **options: Any) -> None:
        try:
            import vllm
            from vllm.platforms import current_platform
            from vllm.sampling_params import StructuredOutputsParams
        except ModuleNotFoundError as error:
            raise Unavailable(f"vllm:{model} needs {error.name}: pip install 'leirgym[vllm]'") from error
        self.name = f"vllm:{model}"
        self._parameters, self._structured = vllm.SamplingParams, StructuredOutputsParams
        if current_platform.is_cpu():
            options = {"max_num_batched_tokens": BATCHED, **options}
        try:
            self._engine = vllm.LLM(model=model, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise Unavailable(f"vLLM can't load {model}: {shorten(str(error), 200)}") from error
        self.window: int = self._engine.llm_engine.model_config.max_model_len

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        started = time.monotonic()
        messages = [[{"role": str(m.role), "content": m.content} for m in talk] for talk in conversations]
        constraint = sampling.constraint
        parameters = self._parameters(
            n=sampling.count,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            structured_outputs=self._structured(**for_vllm(constraint)) if constraint else None,
        )
        try:
            outputs = self._engine.chat(messages, parameters, use_tqdm=False)
        except Exception as error:  # noqa: BLE001 - too long a prompt, a dead engine: the kind depends on the version
            if len(conversations) > 1:  # which of them it is about is not said
                return [answers for talk in conversations for answers in self.act_batch([talk], sampling)]
            code = WINDOW if says_too_long(str(error)) else "unavailable"
            return [failed(f"{code}: {shorten(str(error), 200)}", sampling, time.monotonic() - started)]
        seconds = time.monotonic() - started
        return [
            tuple(
                Completion(
                    answer.text,
                    "",
                    len(output.prompt_token_ids or ()) if n == 0 else 0,
                    len(answer.token_ids),
                    seconds,
                )
                for n, answer in enumerate(output.outputs)
            )
            for output in outputs
        ]
