"""From single evaluations, as a tuner's file holds them, to the arrays of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import Domain, Parameter, SpaceError, Value
from envs.autotune_env.restrictions import enumerate_configurations, parse
from envs.autotune_env.space import Space, Status, direction, is_rate


@dataclass(frozen=True, slots=True)
class Labels:
    """What a file does not say, or says otherwise; empty for what the file says."""

    name: str = ""
    """`application/device`; by default from the kernel's and the device's own names."""
    device: str = ""
    objective: str = ""
    higher_is_better: bool | None = None
    restrictions: tuple[str, ...] | None = None
    """The rules that the recorded configurations must be exactly those of; None: take the file's word."""
    source: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """One evaluation, read."""

    where: str
    """Its name in messages."""
    configuration: Mapping[str, Value]
    status: Status
    value: float
    """The objective; NaN where it failed."""
    runs: Sequence[float]
    """Times of single runs, in the unit of the objective `time`; empty if none were kept."""
    costs: tuple[float, float, float, float]
    """Seconds, by `COSTS`."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a file says about all of its evaluations."""

    values: Mapping[str, tuple[Value, ...]]
    """The values of each parameter, in the order of the file."""
    objective: str
    unit: str
    kernel: str
    device: str = ""
    problem_size: str = ""


def assemble(records: Sequence[Record], task: Task, labels: Labels) -> Space:
    """Sort what was read into arrays. Raises `SpaceError` naming the evaluation that does not fit."""
    parameters = {name: Parameter(name, choices) for name, choices in task.values.items()}
    tunable = {name: parameter.values for name, parameter in parameters.items() if len(parameter.values) > 1}
    constants = {name: parameter.values[0] for name, parameter in parameters.items() if name not in tunable}
    positions = {name: {choice: position for position, choice in enumerate(tunable[name])} for name in tunable}
    indices = np.zeros((len(records), len(tunable)), np.uint16)
    for row, record in enumerate(records):
        for column, name in enumerate(tunable):
            choice = record.configuration[name]
            if choice not in positions[name]:
                raise SpaceError(f"{record.where}: {name} is {choice}, which is not among its values")
            indices[row, column] = positions[name][choice]
        for name, constant in constants.items():
            if record.configuration[name] != constant:
                raise SpaceError(f"{record.where}: {name} is {record.configuration[name]}, its one value is {constant}")
    by_configuration = np.lexsort(indices.T[::-1]) if len(tunable) else np.arange(len(records))
    indices = indices[by_configuration]
    ordered = [records[row] for row in by_configuration]
    if labels.restrictions is not None:
        _compare(indices, tunable, constants, labels.restrictions)
    domain = Domain(
        tuple(parameters[name] for name in tunable),
        indices,
        constants,
        tuple(parameters),
        labels.restrictions or (),
    )
    return Space(
        name=labels.name or "/".join(part.replace("/", "-") for part in (task.kernel, task.device or "unknown")),
        domain=domain,
        status=np.array([record.status for record in ordered], np.int8),
        values=np.array([record.value for record in ordered], np.float64),
        costs=np.array([record.costs for record in ordered], np.float32),
        samples=_samples(ordered, task.objective),
        kernel=task.kernel,
        device=task.device,
        objective=task.objective,
        unit=task.unit,
        higher_is_better=direction(task.objective, labels.higher_is_better),
        problem_size=task.problem_size,
        source=dict(labels.source),
    )


def _compare(
    indices: npt.NDArray[np.uint16],
    tunable: Mapping[str, tuple[Value, ...]],
    constants: Mapping[str, Value],
    restrictions: tuple[str, ...],
) -> None:
    """Refuse a record that lacks a configuration which the restrictions allow, or has one which they don't."""
    allowed = enumerate_configurations(tunable, constants, [parse(text) for text in restrictions])
    theirs, ours = (set(map(tuple, table.tolist())) for table in (allowed, indices))
    for what, odd in (("is allowed and not recorded", theirs - ours), ("is recorded and not allowed", ours - theirs)):
        if odd:
            chosen = zip(tunable.items(), min(odd), strict=True)
            shown = ", ".join(f"{name}={choices[index]}" for (name, choices), index in chosen)
            raise SpaceError(f"{len(odd):,} of {len(theirs):,} configurations: {shown}, the first of them, {what}")


def _samples(records: Sequence[Record], objective: str) -> npt.NDArray[np.float32] | None:
    """Single measurements of the objective, from the times of single runs, where every measured record has them."""
    if objective != "time" and not is_rate(objective):
        return None
    measured = [record for record in records if record.status is Status.CORRECT]
    if not all(record.runs for record in measured):
        return None
    samples = np.full((len(records), max(len(record.runs) for record in measured)), np.nan, np.float32)
    for row, record in enumerate(records):
        if record.status is Status.CORRECT:
            runs = np.array(record.runs)
            samples[row, : len(runs)] = runs if objective == "time" else record.value * runs.mean() / runs
    return samples
