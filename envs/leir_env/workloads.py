"""Workloads: shipped programs by name or URI, and anyone's LEIR text, file or program.

A suite is a folder of `.leir` files beside a table `suites/<suite>.toml`: for each program its family,
size, and the PyTorch module that it was imported from. The suite `patterns` is made by `patterns.py`, in any
size and dtype. Needs neither torch nor TVM.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from envs.leir_env.ir import Program
from envs.leir_env.key import key
from envs.leir_env.parser import MAX_CHARACTERS, parse
from envs.leir_env.patterns import PATTERNS, Value

SUITES = Path(__file__).with_name("suites")
SCHEME = "leir"
MADE = "patterns"
"""The suite whose programs are made, not read."""


class WorkloadError(ValueError):
    """What was asked for is no workload; the message says what there is."""


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
class Workload:
    """A program to optimise, and where it comes from."""

    name: str
    uri: str
    """Names a shipped program (`leir://basic/matmul?n=512`) or the key of any other."""
    program: Program
    family: str = ""
    reference: Reference | None = None


def load(what: str | Path | Program | Workload) -> Workload:
    """Return the workload that a name, URI, LEIR text, `.leir` file, program or workload stands for.

    Raises `WorkloadError` for an unknown name, `ParseError` for malformed text.
    """
    match what:
        case Workload():
            return what
        case Program():
            return _own("program", what)
        case Path():
            return _file(what)
        case str() if "->" in what:
            return _own("program", parse(what))
        case str() if "://" in what:
            return _from_uri(what)
        case str() if what in _table():
            return _shipped(what)
        case str() if what.endswith(".leir"):
            return _file(Path(what))
        case str():
            return _shipped(_of_family(what, {}))
    raise WorkloadError(f"a workload is a name, a URI, LEIR text, a path or a program, not a {type(what).__name__}")


def suites() -> tuple[str, ...]:
    """Return the names of the shipped suites."""
    return (*sorted(table.stem for table in SUITES.glob("*.toml")), MADE)


def names(suite: str | None = None) -> tuple[str, ...]:
    """Return the names of the shipped workloads, of one suite or of all, in the order of the tables."""
    if suite is not None and suite not in suites():
        raise WorkloadError(f"no suite {suite}{_similar(suite, suites())}")
    return tuple(name for name, entry in _table().items() if suite in (None, entry.suite))


def imported() -> Mapping[str, tuple[str, Reference]]:
    """Return suite and PyTorch module of every shipped workload that was imported from one, by name."""
    return {name: (entry.suite, entry.reference) for name, entry in _table().items() if entry.reference}


@dataclass(frozen=True, slots=True)
class _Entry:
    suite: str
    family: str
    size: Mapping[str, Value]
    reference: Reference | None = None


@functools.cache
def _table() -> Mapping[str, _Entry]:
    table: dict[str, _Entry] = {}
    for suite in suites()[:-1]:
        with (SUITES / f"{suite}.toml").open("rb") as file:
            entries = tomllib.load(file)
        for name, entry in entries.items():
            if name in table:
                raise WorkloadError(f"workload {name} stands in the suites {table[name].suite} and {suite}")
            source = Reference(entry["torch"], tuple(entry.get("arguments", {}).items()), entry["inputs"])
            table[name] = _Entry(suite, entry["family"], MappingProxyType(entry["size"]), source)
    made = {name: _Entry(MADE, name, pattern.defaults) for name, pattern in PATTERNS.items()}
    return MappingProxyType(table | made)


@functools.cache
def _shipped(name: str) -> Workload:
    entry = _table()[name]
    if entry.suite == MADE:
        return _made(name, {})
    program = parse((SUITES / entry.suite / f"{name}.leir").read_text(encoding="utf-8"))
    uri = f"{SCHEME}://{entry.suite}/{entry.family}?{_query(entry.size)}"
    return Workload(name, uri, program, entry.family, entry.reference)


def _made(name: str, given: Mapping[str, str]) -> Workload:
    """The pattern `name` with some parameters given."""
    pattern = PATTERNS[name]
    try:
        size = pattern.defaults | pattern.read(given)
    except ValueError as error:
        raise WorkloadError(f"{MADE}/{name}: {error}") from None
    return Workload(name, f"{SCHEME}://{MADE}/{name}?{_query(size)}", parse(pattern.text(**size)), name)


def _query(size: Mapping[str, Value]) -> str:
    return "&".join(f"{parameter}={value}" for parameter, value in size.items())


def _of_family(family: str, size: Mapping[str, str], suite: str | None = None) -> str:
    """The first workload of the family, in the order of the table, that has these sizes."""
    members = {
        name: entry
        for name, entry in _table().items()
        if family in (entry.family, name) and suite in (None, entry.suite)
    }
    if not members:
        known = [*names(suite), *(entry.family for entry in _table().values())]
        hint = _similar(family, known) or f"; `leirgym list` shows all {len(names(suite))}"
        raise WorkloadError(f"no workload {family[:80]!r}{f' in suite {suite}' if suite else ''}{hint}")
    for name, entry in members.items():
        if size.items() <= {parameter: str(value) for parameter, value in entry.size.items()}.items():
            return name
    shipped = " ".join(f"?{_query(entry.size)}" for entry in members.values())
    raise WorkloadError(f"{family} is not shipped with ?{_query(size)}; it is with {shipped}")


def _from_uri(uri: str) -> Workload:
    parts = urlsplit(uri)
    family = parts.path.strip("/")
    if parts.scheme != SCHEME or not parts.netloc or not family:
        raise WorkloadError(f"expected {SCHEME}://suite/name?size=..., got {uri[:80]!r}")
    if parts.netloc not in suites():
        raise WorkloadError(f"no suite {parts.netloc[:80]}{_similar(parts.netloc, suites())}; got {uri[:80]!r}")
    size = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.netloc == MADE and family in PATTERNS:
        return _made(family, size)
    return _shipped(_of_family(family, size, parts.netloc))


def _file(path: Path) -> Workload:
    if not path.is_file():
        raise WorkloadError(f"no file {path}")
    if path.stat().st_size > 4 * MAX_CHARACTERS:
        raise WorkloadError(f"{path.name} has {path.stat().st_size:,} bytes; the limit is {4 * MAX_CHARACTERS:,}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path.name} is not UTF-8 text: byte {error.start}") from None
    return _own(path.stem, parse(text))


def _own(name: str, program: Program) -> Workload:
    return Workload(name, f"{SCHEME}:{key(program)}", program)


def _similar(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
