"""The tables of the shipped suites: what `suites/<suite>.toml` says of each workload.

An entry has a family, a size (extents by name) and the PyTorch module it was imported from. Where it names the
sizes `small`, `default` and `large`, the module can be made in any size, and its inputs are written in names
of extents: `f[m,k] i64[m]`, with `f` for the float dtype.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

SUITES = Path(__file__).with_name("suites")

Value = int | str
"""Of a parameter of a workload: an extent, or the name of a dtype."""

SIZES = ("small", "default", "large")
"""The sizes that a workload of any size is known in; the file that ships has the second."""

FLOAT = "f32"
"""The float dtype of the files that ship."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A PyTorch module as the source of a workload; nothing is imported before it is asked for."""

    target: str
    """`package.module:Class`, or `file.py:Class`."""
    arguments: tuple[tuple[str, Any], ...]
    """Keyword arguments of the constructor, by name."""
    inputs: str
    """Dtypes and shapes of the example inputs: `f32[16,64] i64[16]`. Nothing: those that the file gives."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A shipped workload."""

    suite: str
    name: str
    family: str
    size: Mapping[str, Value]
    """Of the file that ships."""
    torch: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()
    inputs: str = ""
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By the names `SIZES`; none where the module comes in one size only."""

    @property
    def path(self) -> Path:
        return SUITES / self.suite / f"{self.name}.leir"

    def reference(self, size: Mapping[str, Value], dtype: str = FLOAT) -> Reference:
        """The module in a size and float dtype; one that comes in one size only is as it ships."""
        if not self.sizes:
            return Reference(self.torch, self.arguments, self.inputs)
        named = {"suite": self.suite, "name": self.name, **size, **({} if dtype == FLOAT else {"dtype": dtype})}
        return Reference(self.torch, tuple(named.items()), signature(self.inputs, size, dtype))


def tables() -> tuple[str, ...]:
    """Return the names of the suites that have a table, in the order in which names are looked up."""
    return tuple(sorted(table.stem for table in SUITES.glob("*.toml")))


@functools.cache
def entries(suite: str) -> tuple[Entry, ...]:
    """Return the entries of a table, in its order."""
    with (SUITES / f"{suite}.toml").open("rb") as file:
        return tuple(_entry(suite, name, entry) for name, entry in tomllib.load(file).items())


def _entry(suite: str, name: str, table: Mapping[str, Any]) -> Entry:
    sizes = {word: MappingProxyType(table[word]) for word in SIZES if word in table}
    return Entry(
        suite,
        name,
        table["family"],
        sizes["default"] if sizes else MappingProxyType(table["size"]),
        table["torch"],
        tuple(table.get("arguments", {}).items()),
        table["inputs"],
        MappingProxyType(sizes),
    )


_INPUT = re.compile(r"([a-z]+[0-9]*)(\[[^\]]*\])?")


def signature(inputs: str, size: Mapping[str, Value], dtype: str) -> str:
    """`f32[16,64] i64[16]` for `f[m,n] i64[m]`."""

    def written(match: re.Match[str]) -> str:
        names = (match[2] or "").strip("[]").split(",")
        shape = f"[{','.join(str(size.get(name, name)) for name in names)}]" if match[2] else ""
        return (dtype if match[1] == "f" else match[1]) + shape

    return _INPUT.sub(written, inputs)
