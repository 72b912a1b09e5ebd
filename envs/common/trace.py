"""A trace: a task, the actions taken and the evidence gathered. The artefact that others can check.

It replays, verifies again, shrinks, and is what a dataset or a leaderboard takes. Its text form is one
JSON object; `parse(show(trace)) == trace`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from envs.common.actions import Action, ActionError, parse_action
from envs.common.evaluation import Evaluation
from envs.common.problem import Problem

S = TypeVar("S")
T = TypeVar("T")

FORMAT = "leirgym-trace-1"
MAX_CHARACTERS = 50_000_000


class TraceError(ValueError):
    """Text that is not a trace, or a trace that does not fit the problem."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What was done to the program of a task, and what was found."""

    task: str
    """Name or URI that reproduces the problem."""
    target: str
    root: str
    """Key of the root."""
    actions: tuple[Action, ...]
    keys: tuple[str, ...]
    """Key of the state after each action."""
    evaluations: tuple[Evaluation, ...] = ()
    """Records of the root and of states on the way, in the order of the states; each names its key."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Versions and device under which the trace was made."""

    def __post_init__(self) -> None:
        if not self.task:
            raise ValueError("a trace has a task")
        if len(self.keys) != len(self.actions):
            raise ValueError(f"a trace has a key for each action: {len(self.actions)} actions, {len(self.keys)} keys")
        strangers = {record.key for record in self.evaluations} - {self.root, *self.keys}
        if strangers:
            raise ValueError(f"an evaluation belongs to no state of the trace: key {min(strangers)}")

    @property
    def final(self) -> str:
        """Key of the last state."""
        return self.keys[-1] if self.keys else self.root

    @property
    def evaluation(self) -> Evaluation | None:
        """The record of the last state, if it was evaluated."""
        return next((record for record in self.evaluations if record.key == self.final), None)


def record(
    problem: Problem[S],
    actions: Sequence[Action],
    evaluations: Sequence[Evaluation] = (),
    target: str = "",
    environment: Mapping[str, str] | None = None,
) -> Trace:
    """Make the trace of `actions` from the root of `problem`, with the evaluations of states it passes."""
    states = _walk(problem, actions)
    keys = tuple(problem.key(state) for state in states)
    known = {item.key: item for item in evaluations}
    kept = tuple(known[key] for key in dict.fromkeys(keys) if key in known)
    return Trace(problem.task, target, keys[0], tuple(actions), keys[1:], kept, dict(environment or {}))


def replay(trace: Trace, problem: Problem[S]) -> tuple[S, ...]:
    """Return the states from the root on. Raises TraceError naming the first action that does not apply."""
    return _walk(problem, trace.actions)


def _walk(problem: Problem[S], actions: Sequence[Action]) -> tuple[S, ...]:
    states = [problem.root]
    for number, action in enumerate(actions, 1):
        refusal = problem.refusal(states[-1], action)
        if refusal is not None:
            raise TraceError(f"action {number} of {len(actions)}, {action}: {refusal}")
        states.append(problem.apply(states[-1], action))
    return tuple(states)


class Difference(StrEnum):
    """How a trace can fail to hold."""

    REPLAY_FAILED = "replay_failed"
    """An action does not apply."""
    KEY_DIFFERS = "key_differs"
    """The same actions lead to another program."""
    VERDICT_DIFFERS = "verdict_differs"
    """The status of a state is another."""
    SPEEDUP_DIFFERS = "speedup_differs"
    """The new interval of a speedup and the recorded one have no value in common."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a trace does not hold, with the names and numbers."""

    difference: Difference
    sentence: str

    def __str__(self) -> str:
        return f"{self.difference}: {self.sentence}"


def verify(trace: Trace, problem: Problem[S], measure: bool = False) -> tuple[Finding, ...]:
    """Replay a trace and compare; return what differs, nothing if the trace holds.

    With `measure`, every recorded evaluation is made again. Open `problem` without a store for that: it
    then builds, verifies and times in new worker processes and believes nothing recorded.
    """
    try:
        states = replay(trace, problem)
    except TraceError as error:
        return (Finding(Difference.REPLAY_FAILED, str(error)),)
    found: list[Finding] = []
    by_key: dict[str, S] = {}
    for number, (state, expected) in enumerate(zip(states, (trace.root, *trace.keys), strict=True)):
        key = problem.key(state)
        by_key.setdefault(expected, state)
        if key != expected:
            where = f"after action {number}, {trace.actions[number - 1]}," if number else "at the root"
            found.append(Finding(Difference.KEY_DIFFERS, f"{where} the key is {key}, not {expected}"))
    if measure and not found:
        repeated = problem.evaluate([by_key[old.key] for old in trace.evaluations])
        for old, new in zip(trace.evaluations, repeated, strict=True):
            found.extend(_compare(old, new))
    return tuple(found)


def _compare(old: Evaluation, new: Evaluation) -> list[Finding]:
    if old.status.verified != new.status.verified or (not old.status.verified and old.status != new.status):
        detail = f" ({new.detail})" if new.detail else ""
        return [Finding(Difference.VERDICT_DIFFERS, f"{old.key} is {new.status}{detail}, not {old.status}")]
    if old.timing is None or new.timing is None:
        return []
    if new.timing.high < old.timing.low or new.timing.low > old.timing.high:
        measured = f"{new.timing.ratio:.3g} [{new.timing.low:.3g}, {new.timing.high:.3g}]"
        recorded = f"{old.timing.ratio:.3g} [{old.timing.low:.3g}, {old.timing.high:.3g}]"
        return [Finding(Difference.SPEEDUP_DIFFERS, f"{old.key} has speedup {measured}, recorded was {recorded}")]
    return []


def minimise(trace: Trace, problem: Problem[S]) -> Trace:
    """Drop actions without which the last state has the same key; the result replays."""
    actions = trace.actions
    length = len(actions)
    while length:
        shorter = _without_run(actions, length, trace.final, problem)
        # What could not go from the longer trace may go from the shorter one.
        actions, length = (actions, length - 1) if shorter is None else (shorter, len(shorter))
    return record(problem, actions, trace.evaluations, trace.target, trace.environment)


def _without_run(
    actions: tuple[Action, ...], length: int, final: str, problem: Problem[S]
) -> tuple[Action, ...] | None:
    """The actions without the first run of `length` that can go, or None."""
    for start in range(len(actions) - length + 1):
        candidate = actions[:start] + actions[start + length :]
        if _final_key(candidate, problem) == final:
            return candidate
    return None


def _final_key(actions: Sequence[Action], problem: Problem[S]) -> str | None:
    state = problem.root
    for action in actions:
        if problem.refusal(state, action) is not None:
            return None
        state = problem.apply(state, action)
    return problem.key(state)


def show(trace: Trace) -> str:
    """Return the JSON text, one object, ending in a newline."""
    data = {
        "format": FORMAT,
        "task": trace.task,
        "target": trace.target,
        "root": trace.root,
        "actions": [str(action) for action in trace.actions],
        "keys": list(trace.keys),
        "evaluations": [item.to_json() for item in trace.evaluations],
        "environment": dict(trace.environment),
    }
    return json.dumps(data, indent=1) + "\n"


def parse(text: str) -> Trace:
    """Read the JSON text of a trace. Raises TraceError naming the field that is wrong."""
    if len(text) > MAX_CHARACTERS:
        raise TraceError(f"a trace has at most {MAX_CHARACTERS:,} characters, got {len(text):,}")
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(f"a trace is a JSON object: {error}") from None
    if not isinstance(data, dict):
        raise TraceError(f"a trace is a JSON object, not {_kind(data)}")
    if data.get("format") != FORMAT:
        raise TraceError(f"format: expected {FORMAT!r}, got {data.get('format')!r}")
    unknown = data.keys() - {"format", *_FIELDS}
    if unknown:
        raise TraceError(f"{min(unknown)}: no such field; a trace has {', '.join(_FIELDS)}")
    values = {name: read(_required(data, name), name) for name, read in _FIELDS.items()}
    try:
        return Trace(**values)
    except ValueError as error:
        raise TraceError(str(error)) from None


def _required(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise TraceError(f"{name}: the field is missing")
    return data[name]


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TraceError(f"{name}: expected a text, got {_kind(value)}")
    return value


def _tuple(read: Callable[[Any, str], T]) -> Callable[[Any, str], tuple[T, ...]]:
    def items(value: Any, name: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise TraceError(f"{name}: expected a list, got {_kind(value)}")
        return tuple(read(item, f"{name}[{number}]") for number, item in enumerate(value))

    return items


def _action(value: Any, name: str) -> Action:
    try:
        return parse_action(_text(value, name))
    except ActionError as error:
        raise TraceError(f"{name}: {error}") from None


def _evaluation(value: Any, name: str) -> Evaluation:
    if not isinstance(value, dict):
        raise TraceError(f"{name}: expected an object, got {_kind(value)}")
    try:
        return Evaluation.from_json(value)
    except KeyError as error:
        raise TraceError(f"{name}: the field {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise TraceError(f"{name}: {error}") from None


def _texts(value: Any, name: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TraceError(f"{name}: expected an object, got {_kind(value)}")
    return {key: _text(item, f"{name}.{key}") for key, item in value.items()}


_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "task": _text,
    "target": _text,
    "root": _text,
    "actions": _tuple(_action),
    "keys": _tuple(_text),
    "evaluations": _tuple(_evaluation),
    "environment": _texts,
}
