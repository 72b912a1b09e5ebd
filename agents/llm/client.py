"""Models behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, Ollama, or a hosted one."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from agents.llm.policy import (
    MAX_ANSWER_CHARACTERS,
    WINDOW,
    Completion,
    Constraint,
    Conversation,
    Sampling,
    Unavailable,
    estimate_tokens,
    failed,
    says_too_long,
)
from envs.common.moves import shorten

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

MAX_RESPONSE_CHARACTERS = 8_000_000
"""What is read of a server's response."""

NO_KEY = "none"
"""Sent in place of a key to servers that want none."""

PAUSES = (0.5, 8.0)
"""Seconds before a request is tried again: at first, doubled each time, and at most."""

_SPECIAL = re.compile(r"[\\\\.^$*+?{}\[\]|()]")
"""What means something in a regular expression; other dialects reject escapes that are needless."""


class Structured(StrEnum):
    """How a server is told which answers may be decoded."""

    AUTO = "auto"
    """The way of vLLM if the server says it is vLLM, else not at all."""
    VLLM = "vllm"
    """`structured_outputs` with `choice` or `regex`, as vLLM takes it."""
    SCHEMA = "json_schema"
    """`response_format` with a JSON schema, as OpenAI's API and many servers take it."""
    NONE = "none"


class Client:
    """Asks a server for chat completions, several at a time.

    Without `model`, the first that the server lists. What may be transient is tried again, `retries` times at most;
    all tries of a request share its `timeout`, in seconds. `wait` says for how many seconds a server may fail to
    answer at all before it is given up: it may be starting. Raises `Unavailable` if the package or the server is
    missing.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        key: str = NO_KEY,
        timeout: float = 120.0,
        retries: int = 2,
        parallel: int = 16,
        structured: Structured = Structured.AUTO,
        wait: float = 0.0,
    ) -> None:
        self._client = _connect(url, key)
        self._timeout, self._retries, self._parallel = timeout, retries, parallel
        model, owner, self.window = self._listed(url, model, wait)
        self._model = model
        self.name = f"{url.rstrip('/')}#{model}"
        self.structured = structured
        if structured is Structured.AUTO:
            self.structured = Structured.VLLM if owner == "vllm" else Structured.NONE

    def act_batch(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[tuple[Completion, ...]]:
        if len(conversations) == 1:
            return [self._ask(conversations[0], sampling)]
        with ThreadPoolExecutor(self._parallel) as pool:
            return list(pool.map(lambda talk: self._ask(talk, sampling), conversations))

    def _listed(self, url: str, model: str | None, wait: float) -> tuple[str, str, int | None]:
        """The model to ask for, who serves it, and the tokens it reads, where the server says so.

        A server that lists no models is asked for the one named.
        """
        from openai import APIStatusError, OpenAIError

        def ask(seconds: float) -> str:
            return str(self._client.models.with_raw_response.list(timeout=seconds).text)

        models: dict[str, tuple[str, int | None]] = {}
        try:
            body = _retried(ask, wait, math.inf) if wait else _retried(ask, self._timeout, self._retries)
            for item in json.loads(body)["data"]:
                models[str(item["id"])] = str(item.get("owned_by", "")), _window(item.get("max_model_len"))
        except (APIStatusError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if model is None:
                raise Unavailable(f"{url} lists no models: {shorten(str(error), 200)}; name one, {url}#name") from error
        except OpenAIError as error:
            raise Unavailable(f"{url}: {shorten(str(error), 200)}") from error
        if model is None and not models:
            raise Unavailable(f"{url} serves no model")
        if models and model is not None and model not in models:
            raise Unavailable(f"{url} serves no model {model}; it serves {shorten(', '.join(models), 200)}")
        model = model or next(iter(models))
        return model, *models.get(model, ("", None))

    def _ask(self, conversation: Conversation, sampling: Sampling) -> tuple[Completion, ...]:
        from openai import APIConnectionError, APIStatusError, APITimeoutError, OpenAIError

        request, started = self._request(conversation, sampling), time.monotonic()

        def ask(seconds: float) -> str:
            return str(self._client.chat.completions.with_raw_response.create(**request, timeout=seconds).text)

        try:
            answers = read_response(_retried(ask, self._timeout, self._retries), sampling, self.structured)
        except APITimeoutError:
            answers = f"timeout: no answer after {time.monotonic() - started:.3g} seconds"
        except APIConnectionError as error:
            answers = f"connection: {shorten(str(error.__cause__ or error), 200)}"
        except APIStatusError as error:
            code = WINDOW if says_too_long(f"{error.code} {error.message}") else "status"
            answers = f"{code}: {error.status_code}, {shorten(error.message, 200)}"
        except OpenAIError as error:
            answers = f"malformed: {shorten(str(error), 200)}"
        seconds = time.monotonic() - started
        if isinstance(answers, str):
            return failed(answers, sampling, seconds)
        texts, asked, told = answers
        asked = asked or sum(estimate_tokens(message.content) for message in conversation)
        told = told or sum(map(estimate_tokens, texts))
        return tuple(
            Completion(text, "", asked if n == 0 else 0, told if n == 0 else 0, seconds) for n, text in enumerate(texts)
        )

    def _request(self, conversation: Conversation, sampling: Sampling) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": str(message.role), "content": message.content} for message in conversation],
            "n": sampling.count,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }
        if sampling.seed is not None:
            request["seed"] = sampling.seed
        return request | (CONSTRAIN[self.structured](sampling.constraint) if sampling.constraint else {})


def _window(value: Any) -> int | None:
    """A number of tokens, if it is one."""
    return value if isinstance(value, int) and value > 0 else None


def _retried(call: Callable[[float], T], seconds: float, retries: float) -> T:
    """Call with the seconds left, again while a failure may be transient; the last failure is raised."""
    from openai import APIConnectionError, APITimeoutError, InternalServerError, RateLimitError

    deadline, (pause, longest) = time.monotonic() + seconds, PAUSES
    while True:
        try:
            return call(max(deadline - time.monotonic(), 0.001))
        except (APIConnectionError, InternalServerError, RateLimitError) as error:
            told = "" if isinstance(error, APIConnectionError) else error.response.headers.get("retry-after", "")
            rest = float(told) if told.isdecimal() else pause
            if retries < 1 or isinstance(error, APITimeoutError) or time.monotonic() + rest >= deadline:
                raise
            time.sleep(rest)
        retries, pause = retries - 1, min(2 * pause, longest)


def _connect(url: str, key: str) -> OpenAI:
    try:
        from openai import OpenAI
    except ModuleNotFoundError as error:
        raise Unavailable("a server needs the package openai: pip install 'leirgym[llm]'") from error
    return OpenAI(base_url=url, api_key=key, max_retries=0)


def as_regex(constraint: Constraint) -> str:
    """A regular expression of the permitted answers, of one line or more."""
    one = "|".join(_SPECIAL.sub(r"\\\g<0>", choice) for choice in constraint.choices)
    return f"({one})(\\n({one})){{0,{constraint.most - 1}}}"


def for_vllm(constraint: Constraint) -> dict[str, str | list[str]]:
    """The structured outputs of vLLM."""
    if constraint.most == 1:
        return {"choice": list(constraint.choices)}
    return {"regex": as_regex(constraint)}


def schema(constraint: Constraint) -> dict[str, Any]:
    """A JSON schema of the permitted answers: an object with a list."""
    items = {"type": "string", "enum": list(constraint.choices)}
    answers = {"type": "array", "items": items, "minItems": 1, "maxItems": constraint.most}
    return {
        "type": "object",
        "properties": {"answers": answers},
        "required": ["answers"],
        "additionalProperties": False,
    }


def _as_schema(constraint: Constraint) -> dict[str, Any]:
    form = {"name": "answers", "strict": True, "schema": schema(constraint)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


CONSTRAIN: Mapping[Structured, Callable[[Constraint], dict[str, Any]]] = {
    Structured.VLLM: lambda constraint: {"extra_body": {"structured_outputs": for_vllm(constraint)}},
    Structured.SCHEMA: _as_schema,
    Structured.NONE: lambda constraint: {},
}
"""What a constraint adds to a request."""


def read_response(body: str, sampling: Sampling, structured: Structured) -> tuple[list[str], int, int] | str:
    """The answers in a response, and the tokens of prompt and answers; or what is wrong with it."""
    if len(body) > MAX_RESPONSE_CHARACTERS:
        return f"size: a response has at most {MAX_RESPONSE_CHARACTERS:,} characters, got {len(body):,}"
    try:
        data = json.loads(body)
        texts = [str(choice["message"]["content"] or "") for choice in data["choices"]]
        usage = data.get("usage") or {}
        asked, told = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return f"malformed: the server's response is no chat completion: {shorten(body, 100)}"
    if len(texts) != sampling.count:
        return f"malformed: {sampling.count} answers were asked for, {len(texts)} came"
    if structured is Structured.SCHEMA and sampling.constraint:
        texts = [lines(text) for text in texts]
    return texts, max(asked, 0), max(told, 0)


def lines(text: str) -> str:
    """The answers in an object of the schema, one a line; the text itself if it is none."""
    if len(text) > MAX_ANSWER_CHARACTERS:
        return text
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return text
    answers = data.get("answers") if isinstance(data, Mapping) else None
    return "\n".join(map(str, answers)) if isinstance(answers, list) else text
