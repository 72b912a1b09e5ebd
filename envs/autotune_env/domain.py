"""What may be tried: tunable parameters, their values, and the allowed configurations in compact arrays.

A configuration is a row of indices into the values of each parameter; rows stand in lexicographic order, so that
all configurations with a common prefix are neighbours, and a mask for the next parameter is one slice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.restrictions import RestrictionError, parse

Value = int | float | str | bool
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.int8]

NOWHERE = -1
"""The row of what is no configuration."""

MAX_VALUES = 1 << 16
"""Of one parameter."""

DENSE = 1 << 23
"""Up to this Cartesian size, a table of 4 bytes an entry looks rows up."""


class SpaceError(ValueError):
    """Data that is no tuning space; the message names the file, the place and the rule."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tunable parameter and the values that it takes, in order."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.values) <= MAX_VALUES:
            raise SpaceError(f"parameter {self.name} has 1 to {MAX_VALUES:,} values, not {len(self.values):,}")
        for value in self.values:
            if not isinstance(value, int | float | str):
                raise SpaceError(f"parameter {self.name}: a value is a number, a text or a truth value, not {value!r}")
        if len({repr(value) for value in self.values}) < len(self.values):
            raise SpaceError(f"parameter {self.name} lists a value twice: {self.values}")


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """The allowed configurations of some parameters. Equal only to itself; arrays are read-only."""

    parameters: tuple[Parameter, ...]
    """Those with two values or more, in order."""
    configurations: npt.NDArray[np.uint16]
    """(N, D): indices into the values of each parameter, in lexicographic order."""
    constants: Mapping[str, Value] = field(default_factory=dict)
    """Parameters with one value."""
    order: tuple[str, ...] = ()
    """The names of all parameters, constants included, as the recording orders them."""
    restrictions: tuple[str, ...] = ()
    """The rules that configurations satisfy, where they are known."""
    codes: Rows = field(init=False)
    """(N,): each row as one number in the mixed radix of the parameters; ascending."""
    strides: tuple[int, ...] = field(init=False)
    """What one step of each parameter adds to a code."""

    def __post_init__(self) -> None:
        _check(self.parameters, self.configurations)
        sizes = [len(parameter.values) for parameter in self.parameters]
        strides = tuple(math.prod(sizes[position + 1 :]) for position in range(len(sizes)))
        codes = self.configurations.astype(np.int64) @ np.array(strides, np.int64)
        steps = np.diff(codes)
        if np.any(steps <= 0):
            row = int(np.argmax(steps <= 0)) + 1
            what = "occurs twice" if steps[row - 1] == 0 else "stands out of order"
            raise SpaceError(f"configuration {row} of {len(codes):,}, {self.configurations[row].tolist()}, {what}")
        for array in (codes, self.configurations):
            array.setflags(write=False)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "codes", codes)
        if not self.order:
            object.__setattr__(self, "order", (*(p.name for p in self.parameters), *self.constants))
        _check_names(self)

    def __len__(self) -> int:
        return len(self.configurations)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each parameter has."""
        return tuple(len(parameter.values) for parameter in self.parameters)

    @property
    def cartesian(self) -> int:
        """How many configurations there would be without restrictions."""
        return math.prod(self.sizes)

    def rows(self, indices: npt.NDArray[Any]) -> Rows:
        """The rows of many configurations (..., D), `NOWHERE` for what is none."""
        within = np.all((indices >= 0) & (indices < np.array(self.sizes)), axis=-1)
        codes = indices.astype(np.int64) @ np.array(self.strides, np.int64)
        found = np.minimum(np.searchsorted(self.codes, codes), len(self) - 1)
        return np.where(within & (self.codes[found] == codes), found, NOWHERE)

    def row(self, indices: Sequence[int]) -> int:
        """The row of one configuration, or `NOWHERE`. Raises ValueError unless there are D indices."""
        code = 0
        for index, size, stride in zip(indices, self.sizes, self.strides, strict=True):
            if not 0 <= index < size:
                return NOWHERE
            code += index * stride
        found = int(np.searchsorted(self.codes, code))
        return found if found < len(self) and self.codes[found] == code else NOWHERE

    def value_of(self, row: int) -> dict[str, Value]:
        """The values of all parameters, constants included, in the order of the recording."""
        chosen = {p.name: p.values[index] for p, index in zip(self.parameters, self.configurations[row], strict=True)}
        return {name: chosen[name] if name in chosen else self.constants[name] for name in self.order}

    def label(self, row: int) -> str:
        """The configuration as Kernel Tuner's caches spell it: values with commas between."""
        return ",".join(str(value) for value in self.value_of(row).values())

    def describe(self, indices: Sequence[int]) -> str:
        """A choice of values, allowed or not, as `block_size_x=32, tile_size=4`; an index that is none as `?7`."""
        return ", ".join(
            f"{p.name}={p.values[index] if 0 <= index < len(p.values) else f'?{index}'}"
            for p, index in zip(self.parameters, indices, strict=True)
        )

    def why_not(self, indices: Sequence[int]) -> str | None:
        """Why a choice of values is no configuration, as `code: sentence`, or None.

        Names the first restriction that is violated, where restrictions are known.
        """
        for parameter, index in zip(self.parameters, indices, strict=True):
            if not 0 <= index < len(parameter.values):
                last = len(parameter.values) - 1
                return f"unknown_index: {parameter.name} runs from 0 to {last}, not to {index}"
        if self.row(indices) != NOWHERE:
            return None
        chosen = {p.name: p.values[index] for p, index in zip(self.parameters, indices, strict=True)}
        for text in self.restrictions:
            restriction = parse(text)
            if not restriction.holds({**self.constants, **chosen}, 1)[0]:
                given = ", ".join(f"{name}={value}" for name, value in chosen.items() if name in restriction.names)
                return f"restriction: {text} does not hold for {given}"
        return f"not_allowed: {self.describe(indices)} is none of the {len(self):,} configurations"

    def allowed(self, prefix: npt.ArrayLike = ()) -> Mask:
        """Which values the next parameter may take, after the first k took those of `prefix`, an array (..., k).

        The conditional mask (..., size) of policies that choose in turn: 1 where some configuration begins so. All
        zeros after a prefix that no configuration has. Raises ValueError where no parameter is left.
        """
        given = np.asarray(prefix, np.int64)
        count = given.shape[-1]
        if count >= len(self.sizes):
            raise ValueError(f"a prefix has at most {len(self.sizes) - 1} values, not {count}")
        possible = np.all((given >= 0) & (given < np.array(self.sizes[:count])), axis=-1, keepdims=True)
        begins = (given @ np.array(self.strides[:count], np.int64))[..., None]
        edges = begins + np.arange(self.sizes[count] + 1) * self.strides[count]
        mask: Mask = (np.diff(np.searchsorted(self.codes, edges), axis=-1) > 0) & possible
        return mask.astype(np.int8)

    def occurring(self) -> tuple[Mask, ...]:
        """Which values of each parameter occur in any configuration."""
        masks = tuple(np.zeros(size, np.int8) for size in self.sizes)
        for mask, column in zip(masks, self.configurations.T, strict=True):
            mask[column] = 1
        return masks

    def same_parameters(self, other: Domain) -> bool:
        """Whether configurations of both are chosen in the same way."""
        return self.parameters == other.parameters


def _check(parameters: tuple[Parameter, ...], configurations: npt.NDArray[np.uint16]) -> None:
    if not parameters:
        raise SpaceError("no parameter has two values or more: there is nothing to tune")
    if configurations.dtype != np.uint16 or configurations.ndim != 2 or configurations.shape[1] != len(parameters):
        shape = "x".join(map(str, configurations.shape))
        raise SpaceError(
            f"configurations are a table of uint16 with {len(parameters)} columns, not {configurations.dtype} {shape}"
        )
    for parameter in parameters:
        if len(parameter.values) < 2:
            raise SpaceError(f"parameter {parameter.name} has one value: it is a constant")
    if not len(configurations):
        raise SpaceError("there is no configuration")
    if math.prod(len(parameter.values) for parameter in parameters) >= 2**62:
        raise SpaceError("the Cartesian product of the parameters has more than 2**62 elements")
    for parameter, column in zip(parameters, configurations.T, strict=True):
        if column.max() >= len(parameter.values):
            row = int(np.argmax(column))
            raise SpaceError(
                f"configuration {row}: parameter {parameter.name} has {len(parameter.values)} values, "
                f"none at index {int(column[row])}"
            )


def _check_names(domain: Domain) -> None:
    known = {*(parameter.name for parameter in domain.parameters), *domain.constants}
    if set(domain.order) != known or len(domain.order) != len(known):
        raise SpaceError(f"the order {', '.join(domain.order)} is not one of {', '.join(sorted(known))}")
    for text in domain.restrictions:
        try:
            strange = parse(text).names - known
        except RestrictionError as error:
            raise SpaceError(str(error)) from None
        if strange:
            raise SpaceError(f"the restriction {text} names {min(strange)}, which is no parameter")


@functools.lru_cache(maxsize=16)
def moves(domain: Domain) -> npt.NDArray[np.int32]:
    """Where each single change leads: (N, sum of sizes), the row after setting one parameter to one value.

    `NOWHERE` where that is no configuration, and where the parameter has that value already.
    """
    find = finder(domain.codes, domain.cartesian)
    blocks = []
    for position, (size, stride) in enumerate(zip(domain.sizes, domain.strides, strict=True)):
        column = domain.configurations[:, position].astype(np.int64)
        base = domain.codes - column * stride
        block = find(base[:, None] + np.arange(size) * stride)
        block[np.arange(len(domain)), column] = NOWHERE
        blocks.append(block)
    table = np.concatenate(blocks, axis=1)
    table.setflags(write=False)
    return table


def finder(codes: Rows, size: int) -> Callable[[Rows], npt.NDArray[np.int32]]:
    """A function from many codes below `size` to their places among `codes`, which ascend; `NOWHERE` for others."""
    if size <= DENSE:
        dense = np.full(size, NOWHERE, np.int32)
        dense[codes] = np.arange(len(codes), dtype=np.int32)
        return dense.__getitem__

    def find(wanted: Rows) -> npt.NDArray[np.int32]:
        found = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        return np.where(codes[found] == wanted, found, NOWHERE).astype(np.int32)

    return find
