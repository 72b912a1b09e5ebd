"""From what a user writes to a policy, an adviser, an agent: models by address, and the options of commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from agents.base import PROPOSERS, make_agent, make_proposer
from agents.llm.adviser import Adviser, Limited, Patient, Transcript, forget
from agents.llm.answers import Answers, AnswersError, Cached
from agents.llm.client import NO_KEY, Client, Structured
from agents.llm.formatter import LONGEST, Form, Formatter
from agents.llm.policy import Chance, Policy, Sampling, Scripted, Unavailable, window
from agents.llm.proposer import NAMED
from envs.common.console import BadInput, Missing

SCRIPT_SEPARATOR = "\n---\n"
"""Between the answers of a script."""


def open_policy(
    model: str, key: str = NO_KEY, timeout: float = 120.0, structured: Structured = Structured.AUTO, wait: float = 0.0
) -> Policy:
    """The model at an address.

    `http://host:8000/v1`, or with `#name` the model of that name there; `vllm:FOLDER` in this process;
    `script:FILE`, answers between lines of `---`; `chance`; or a folder, run by transformers. Raises `Unavailable`.
    """
    if model == "chance":
        return Chance()
    scheme, _, rest = model.partition(":")
    if scheme in ("http", "https"):
        url, _, name = model.partition("#")
        return Client(url, name or None, key, timeout, structured=structured, wait=wait)
    if scheme == "vllm":
        from agents.llm.vllm_policy import VLLM

        return VLLM(rest)
    if scheme == "script":
        return _script(Path(rest))
    if not model or not Path(model).is_dir():
        raise Unavailable(f"there is no model {model!r}: it is a URL, vllm:FOLDER, script:FILE, chance, or a folder")
    from agents.llm.transformers_policy import Transformers

    return Transformers(model, timeout=timeout)


def _script(path: Path) -> Policy:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{path}: {error}") from error
    return Scripted(text.removesuffix("\n").split(SCRIPT_SEPARATOR), str(path))


@dataclass(frozen=True, slots=True)
class Model:
    """The options that say which model to ask, and how."""

    model: str | None = None
    form: Form = Form.MENU
    reasoning: bool = False
    temperature: float = 0.3
    max_tokens: int | None = None
    token_budget: int | None = None
    answers: Path | None = None
    transcript: Path | None = None
    structured: Structured = Structured.AUTO
    timeout: float = 120.0
    wait: float = 0.0
    api_key: str = NO_KEY

    def adviser(self, most: int = 1) -> Adviser:
        """The adviser they describe, which names up to `most` actions."""
        if self.model is None:
            raise BadInput("--model is missing: a URL, vllm:FOLDER, script:FILE, chance, or a folder")
        for path in filter(None, (self.answers, self.transcript)):
            if not path.parent.is_dir():
                raise BadInput(f"{path}: there is no folder {path.parent}")
        try:
            opened = open_policy(self.model, self.api_key, self.timeout, self.structured, self.wait)
            policy: Policy = Patient(opened, given_up=_tell)
            if self.answers is not None:
                policy = Cached(policy, Answers(self.answers))
        except Unavailable as error:
            raise Missing(str(error)) from error
        except AnswersError as error:
            raise BadInput(str(error)) from error
        if self.token_budget is not None:
            policy = Limited(policy, self.token_budget)
        answer, prompt = self._sizes(most, window(opened))
        return Adviser(
            policy,
            Formatter(self.form, self.reasoning, most, tokens=prompt),
            Sampling(temperature=self.temperature, max_tokens=answer),
            Transcript(self.transcript) if self.transcript else forget,
        )

    def _sizes(self, most: int, room: int | None) -> tuple[int, int]:
        """Tokens of the longest answer and prompt, so that a model that reads `room` tokens has room for both."""
        answer = self.max_tokens or (4096 if self.reasoning or self.form is Form.REWRITE else 64 * most)
        if room is None:
            return answer, LONGEST
        if self.max_tokens is None:
            answer = min(answer, max(1, room // 2))
        if answer >= room:
            raise BadInput(f"--max-tokens {answer:,}: {self.model} reads {room:,} tokens, prompt and answer together")
        return answer, min(LONGEST, room - answer)

    def check(self, agents: Sequence[str], proposer: str | None) -> None:
        """Refuse options that would have no effect on `agents`, or can't be had together. Raises `BadInput`."""
        guided = [agent for agent in agents if takes_proposer(agent)]
        if proposer is not None and not guided:
            raise BadInput(f"{', '.join(agents)}: none of these takes a --proposer")
        if self.model is not None and "llm" not in agents and proposer != "llm":
            raise BadInput("--model goes with the agent llm or with --proposer llm")
        if self.form is Form.REWRITE and (proposer == "llm" or list(agents) != ["llm"]):
            raise BadInput("--form rewrite goes with the agent llm alone: a proposer ranks actions")

    def parameters(self, agent: str, proposer: str | None) -> dict[str, Any]:
        """What to make `agent` with. Raises `BadInput`, or `Missing` for a model that is not there."""
        if agent == "llm":
            return {"adviser": self.adviser()}
        if proposer is None or not takes_proposer(agent):
            return {}
        given = {"adviser": self.adviser(NAMED)} if proposer == "llm" else {}
        return {"proposer": make_proposer(proposer, **given)}


def _tell(sentence: str) -> None:
    click.echo(sentence, err=True)


def takes_proposer(agent: str) -> bool:
    """Whether an agent runs with any proposer."""
    made = make_agent(agent)
    return is_dataclass(made) and any(item.name == "proposer" for item in fields(made))


def _choice(kind: type[Form] | type[Structured], default: Form | Structured, name: str, text: str) -> Any:
    """An option that takes one of the values of an enumeration."""
    return click.option(
        name,
        type=click.Choice([str(item) for item in kind]),
        default=str(default),
        show_default=True,
        callback=lambda context, parameter, value: kind(value),
        help=text,
    )


_FILE = click.Path(dir_okay=False, path_type=Path)
_COUNT = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)
_ADDRESS = "Language model: the URL of a server (#name chooses), vllm:FOLDER, script:FILE, chance, or a folder."

_OPTIONS = (
    click.option("--proposer", type=click.Choice(tuple(PROPOSERS)), help="What ranks the actions for the search."),
    click.option("--model", help=_ADDRESS),
    _choice(Form, Form.MENU, "--form", "How the model answers."),
    click.option("--reasoning", is_flag=True, help="Let the model think before it answers."),
    click.option("--temperature", type=click.FloatRange(0, 2), default=0.3, show_default=True, help="Of the model."),
    click.option("--max-tokens", type=_COUNT, help="Longest answer of the model."),
    click.option("--token-budget", type=_COUNT, help="Tokens of prompts and answers in all."),
    click.option("--answers", type=_FILE, help="Remember the model's answers in this file."),
    click.option("--transcript", type=_FILE, help="Append every exchange to this file (JSON lines)."),
    _choice(Structured, Structured.AUTO, "--structured", "How the server is told which answers are legal."),
    click.option("--timeout", type=_SECONDS, default=120.0, show_default=True, help="Seconds to wait for the model."),
    click.option("--wait", type=click.FloatRange(0), default=0.0, help="Seconds that the server may take to start."),
    click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, default=NO_KEY, help="For the server."),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `Model`, as one argument `language`, and `--proposer`."""
    names = [item.name for item in fields(Model)]

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        language = Model(**{name: given.pop(name) for name in names})
        return command(**given, language=language)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
