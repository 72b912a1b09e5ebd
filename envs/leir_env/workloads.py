"""Workloads: shipped programs by name or URI, and anyone's LEIR text, file or program.

    softmax                              a name: the first suite that has it
    leir://single/softmax                one suite's; `single/softmax` says the same
    leir://single/softmax?n=1024&dtype=f16     another size and dtype
    leir://single/softmax?size=small     a size by name: small, default, large
    leir://patterns/log_sum?n=16         made on the spot, see `patterns.py`
    leir://fuzz/17                       a random program by seed, see `generate.py`

A suite is a folder of `.leir` files beside a table, see `suite_tables.py`. What ships loads without PyTorch and
TVM, in any float dtype; another size is imported from PyTorch when it is asked for.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from envs.leir_env.importer.dtypes import retyped
from envs.leir_env.ir import DType, Program
from envs.leir_env.key import key
from envs.leir_env.parser import MAX_CHARACTERS, parse
from envs.leir_env.patterns import DTYPES, PATTERNS
from envs.leir_env.roofline import flops
from envs.leir_env.suite_tables import FLOAT, SIZES, SUITES, Entry, Reference, Value, entries, tables

SCHEME = "leir"
MADE = "patterns"
"""The suite whose programs are made, not read."""
RANDOM = "fuzz"
"""The random programs; there are too many to list."""
LIGHT = ("basic", MADE)
"""Suites of programs that take seconds, not minutes, to interpret and to search."""

MAX_EXTENT = 2**20

TEST_FAMILIES = frozenset(
    {"loss", "pooling", "max_pool", "conv2d_pooling", "conv3d_pooling", "gemm_pooling", "twin_convolution", "gqa"}
)
"""Families held out of training, about a fifth of the workloads: pooling wherever it stands, losses, shared
filters, grouped queries."""


class WorkloadError(ValueError):
    """What was asked for is no workload; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A program to optimise, and where it comes from."""

    name: str
    uri: str
    """Names a shipped program (`leir://basic/matmul?n=512`) or the key of any other."""
    program: Program
    family: str = ""
    reference: Reference | None = None

    @property
    def split(self) -> str:
        """`train` or `test`; all of a family is in one of them."""
        return "test" if self.family in TEST_FAMILIES else "train"

    @property
    def flops(self) -> int:
        """Operations of one run, each as one."""
        return flops(self.program)

    @property
    def bytes(self) -> int:
        """Size of all inputs, parameters and outputs: what any program must move."""
        return sum(tensor.nbytes for tensor in (*self.program.inputs, *self.program.outputs))


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
        case str() if what.partition("/")[0] in (*suites(), RANDOM):
            return _from_uri(f"{SCHEME}://{what}")
        case str():
            return _shipped(_of_family(what, {}))
    raise WorkloadError(f"a workload is a name, a URI, LEIR text, a path or a program, not a {type(what).__name__}")


def suites() -> tuple[str, ...]:
    """Return the names of the shipped suites."""
    return (*tables(), MADE)


def names(*chosen: str) -> tuple[str, ...]:
    """Return what loads each shipped workload, of some suites or of all, in the order of the tables.

    That is its name, or `suite/name` where a suite before it has the same.
    """
    for suite in chosen:
        if suite not in suites():
            raise WorkloadError(f"no suite {suite}{_similar(suite, suites())}")
    return tuple(name for name, entry in _table().items() if not chosen or entry.suite in chosen)


def imported() -> Mapping[str, Entry]:
    """Return the entry of every shipped workload that was imported from a PyTorch module, by name."""
    return {name: entry for name, entry in _table().items() if entry.torch}


@functools.cache
def _table() -> Mapping[str, Entry]:
    table: dict[str, Entry] = {}
    made = (Entry(MADE, name, name, pattern.defaults) for name, pattern in PATTERNS.items())
    for entry in (*(entry for suite in tables() for entry in entries(suite)), *made):
        table[f"{entry.suite}/{entry.name}" if entry.name in table else entry.name] = entry
    return MappingProxyType(table)


@functools.cache
def _shipped(name: str, dtype: str = FLOAT) -> Workload:
    entry = _table()[name]
    if entry.suite == MADE:
        return _made(name, {})
    program = parse(entry.path.read_text(encoding="utf-8"))
    if dtype == FLOAT:
        return Workload(name, _uri(entry, entry.size), program, entry.family, entry.reference(entry.size))
    uri = _uri(entry, entry.size, dtype)
    known = entry.reference(entry.size, dtype) if entry.sizes else None
    return Workload(uri.partition("//")[2], uri, _in_dtype(program, dtype, uri), entry.family, known)


def _uri(entry: Entry, size: Mapping[str, Value], dtype: str = FLOAT) -> str:
    path = entry.name if entry.sizes else entry.family
    return f"{SCHEME}://{entry.suite}/{path}?{_query({**size, **({} if dtype == FLOAT else {'dtype': dtype})})}"


@functools.cache
def _in_size(name: str, size: tuple[tuple[str, int], ...], dtype: str) -> Workload:
    """The workload `name` imported from PyTorch in another size."""
    from envs.leir_env.from_torch import program_of
    from envs.leir_env.importer.relax import ImportProblem

    entry, extents = _table()[name], dict(size)
    try:
        program = program_of(entry.reference(extents))
    except ImportProblem as problem:
        asked = f"{entry.suite}/{entry.name}?{_query(extents)}"
        raise WorkloadError(f"{asked} does not ship and is imported from PyTorch: {problem}") from None
    uri = _uri(entry, extents, dtype)
    program = program if dtype == FLOAT else _in_dtype(program, dtype, uri)
    return Workload(uri.partition("//")[2], uri, program, entry.family, entry.reference(extents, dtype))


def _in_dtype(program: Program, dtype: str, uri: str) -> Program:
    """The program in another float dtype; wider ones may be too large."""
    from envs.leir_env.verify import verify

    changed = retyped(program, DType(dtype))
    problems = verify(changed)
    if problems:
        raise WorkloadError(f"{uri}: {problems[0].sentence}")
    return changed


def _made(name: str, given: Mapping[str, str]) -> Workload:
    """The pattern `name` with some parameters given."""
    pattern = PATTERNS[name]
    try:
        size = {**pattern.defaults, **pattern.read(given)}
    except ValueError as error:
        raise WorkloadError(f"{MADE}/{name}: {error}") from None
    return Workload(name, f"{SCHEME}://{MADE}/{name}?{_query(size)}", parse(pattern.text(**size)), name)


def _random(seed: str) -> Workload:
    import numpy as np

    from envs.leir_env.generate import random_program

    if not seed.isdecimal() or len(seed) > 18:
        raise WorkloadError(f"expected {SCHEME}://{RANDOM}/SEED with a natural number below 10^18, got {seed[:80]!r}")
    number = int(seed)
    return Workload(
        f"{RANDOM}/{number}",
        f"{SCHEME}://{RANDOM}/{number}",
        random_program(np.random.default_rng(number)),
        RANDOM,
    )


def _query(size: Mapping[str, Value]) -> str:
    return "&".join(f"{parameter}={value}" for parameter, value in size.items())


def _of_family(family: str, size: Mapping[str, str], suite: str | None = None) -> str:
    """The first workload of the family, in the order of the table, that has these sizes."""
    members = {
        name: entry
        for name, entry in _table().items()
        if family in (entry.family, entry.name) and suite in (None, entry.suite)
    }
    if not members:
        known = [text for e in _table().values() if suite in (None, e.suite) for text in (e.name, e.family)]
        count = len(names(*([suite] if suite else [])))
        hint = _similar(family, known) or f"; `leirgym list` shows all {count}"
        raise WorkloadError(f"no workload {family[:80]!r}{f' in suite {suite}' if suite else ''}{hint}")
    for name, entry in members.items():
        if size.items() <= {parameter: str(value) for parameter, value in entry.size.items()}.items():
            return name
    shipped = " ".join(f"?{_query(entry.size)}" for entry in members.values())
    raise WorkloadError(f"{family} is not shipped with ?{_query(size)}; it is with {shipped}")


def _from_uri(uri: str) -> Workload:
    parts = urlsplit(uri)
    suite, family = parts.netloc, parts.path.strip("/")
    if parts.scheme != SCHEME or not suite or not family:
        raise WorkloadError(f"expected {SCHEME}://suite/name?size=..., got {uri[:80]!r}")
    if suite == RANDOM:
        return _random(family)
    if suite not in suites():
        raise WorkloadError(f"no suite {suite[:80]}{_similar(suite, (*suites(), RANDOM))}; got {uri[:80]!r}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if suite == MADE and family in PATTERNS:
        return _made(family, given)
    dtype = given.pop("dtype", FLOAT)
    if dtype not in DTYPES:
        raise WorkloadError(f"{suite}/{family[:40]}: dtype is one of {', '.join(DTYPES)}, not {dtype[:40]}")
    name = next((n for n, entry in _table().items() if (entry.suite, entry.name) == (suite, family)), None)
    if name is None or not _table()[name].sizes:
        return _shipped(_of_family(family, given, suite), dtype)
    size = _size(_table()[name], given)
    return _shipped(name, dtype) if size == _table()[name].size else _in_size(name, tuple(size.items()), dtype)


def _size(entry: Entry, given: Mapping[str, str]) -> dict[str, int]:
    """The extents that a query asks for. Raises `WorkloadError`."""
    here = f"{entry.suite}/{entry.name}"
    word = given.get("size", "default")
    if word not in entry.sizes:
        raise WorkloadError(f"{here}: size is one of {', '.join(SIZES)}, not {word[:40]}")
    size = dict(entry.sizes[word])
    for name, text in given.items():
        if name not in (*size, "size"):
            raise WorkloadError(f"{here}: there is no parameter {name[:40]}, but {', '.join(size)}, size, dtype")
        if name != "size":
            if not text.isdecimal() or len(text) > 9 or not 0 < int(text) <= MAX_EXTENT:
                raise WorkloadError(f"{here}: {name} is an integer from 1 to {MAX_EXTENT}, not {text[:40]}")
            size[name] = int(text)
    return size


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


def _similar(name: str, known: Iterable[Any]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


__all__ = [
    "LIGHT",
    "SCHEME",
    "SUITES",
    "TEST_FAMILIES",
    "Reference",
    "Workload",
    "WorkloadError",
    "imported",
    "load",
    "names",
    "suites",
]
