"""Read what tuners wrote: Kernel Tuner's cache files, open or closed, and T4 result files; `.gz` of either.

Whatever is wrong with a file is a `SpaceError` that names the file, the entry and the rule. A cache that its tuner
never closed is whole up to its last entry; one that ends within an entry is not.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.autotune_env.domain import SpaceError, Value
from envs.autotune_env.records import Labels, Record, Task, assemble
from envs.autotune_env.restrictions import RestrictionError
from envs.autotune_env.space import UNITS, Space, Status

KERNEL_TUNER_FAILURES = {
    "InvalidConfig": Status.CONSTRAINTS,
    "CompilationFailedConfig": Status.COMPILE,
    "RuntimeFailedConfig": Status.RUNTIME,
    "ErrorConfig": Status.RUNTIME,
}
"""Kernel Tuner's names for what failed: the objective of an old cache, `__error__` in a new one."""

FIELDS = frozenset(
    {
        *("time", "times", "timestamp", "metrics", "__error__", "invalidity", "reason"),
        *("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time"),
    }
)
"""What an entry of a cache holds beside the parameters, under names that a parameter may have as well."""

T4_STATUS = {status.label: status for status in Status}

MILLISECOND = UNITS["ms"]


def read(path: Path, labels: Labels | None = None) -> Space:
    """Read a cache or a T4 file. Raises `SpaceError`, and OSError where there is no such file."""
    labels = labels or Labels()
    try:
        data = _parse(_text(path))
        if not isinstance(data, dict):
            raise SpaceError("a cache is one JSON object")
        if "cache" in data:
            return _kernel_tuner(data, labels, path)
        if "results" in data:
            return _t4(data, labels, path)
        raise SpaceError(f"neither cache (Kernel Tuner) nor results (T4) is among its keys: {', '.join(data)[:80]}")
    except (SpaceError, RestrictionError) as error:
        raise SpaceError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SpaceError(f"the compressed data is cut or damaged: {error}") from None
    except UnicodeDecodeError as error:
        raise SpaceError(f"byte {error.start} is not UTF-8") from None


def _parse(text: str) -> Any:
    """JSON, with the two braces that an open cache lacks put back."""
    whole = text.rstrip()
    for candidate in (text, whole.removesuffix(",") + "}}"):
        try:
            return json.loads(candidate)
        except json.JSONDecodeError as error:
            if candidate is text:
                first = error
        except RecursionError:
            raise SpaceError("the JSON is nested too deeply") from None
    cut = first.pos >= len(whole) - 1 or first.msg.startswith("Unterminated")
    what = "the file ends in the middle of an entry: it was cut" if cut else first.msg
    raise SpaceError(f"line {first.lineno}, column {first.colno}: {what}")


def _kernel_tuner(data: Mapping[str, Any], labels: Labels, path: Path) -> Space:
    order = tuple(map(str, _required(data, "tune_params_keys", list, "the header")))
    listed = _required(data, "tune_params", dict, "the header")
    if set(order) != set(listed):
        odd = min(set(order) ^ set(listed))
        raise SpaceError(f"tune_params and tune_params_keys differ: {odd} is in one of them only")
    objective = labels.objective or _objective(data.get("objective", "time"))
    cache = _required(data, "cache", dict, "the header")
    values = {name: tuple(_required(listed, name, list, "tune_params")) for name in order}
    records = [_cache_record(key, entry, values, objective) for key, entry in cache.items()]
    if not records:
        raise SpaceError("the cache has no entry")
    device = labels.device or str(data.get("device_name") or "")
    kernel = str(data.get("kernel_name") or path.name.partition(".")[0])
    size = json.dumps(data.get("problem_size", "")).strip('"')
    unit = "ms" if objective == "time" else objective
    return assemble(records, Task(values, objective, unit, kernel, device, size), labels)


def _objective(stated: Any) -> str:
    """The single objective of a file; Kernel Tuner also writes it as {name: higher is better}."""
    names = list(stated) if isinstance(stated, list | dict) else [stated]
    if len(names) != 1:
        raise SpaceError(f"a space has one objective, not {len(names)}; say which")
    return str(names[0])


def _cache_record(key: str, entry: Any, values: Mapping[str, tuple[Value, ...]], objective: str) -> Record:
    where = f"entry {key}"
    if not isinstance(entry, dict):
        raise SpaceError(f"{where}: an entry is an object")
    shared = values.keys() & (FIELDS | {objective})
    configuration, fields = _told_apart(key, entry, values) if shared else (entry, entry)
    spelled = ",".join(str(_required(configuration, name, (int, float, str, bool), where)) for name in values)
    if spelled != key:
        raise SpaceError(f"{where}: its parameters, in the order of tune_params_keys, are {spelled}: the order differs")
    status = _status(fields, objective, where)
    correct = status is Status.CORRECT
    value = _number(fields, objective, where) if correct else float("nan")
    runs = _runs(fields.get("times", ()), where) if correct else ()
    benchmark = sum(runs) if runs else _number(fields, "benchmark_time", where, None if correct else 0.0)
    own = _number(fields, "framework_time", where, 0.0) + _number(fields, "strategy_time", where, 0.0)
    compile_time = _number(fields, "compile_time", where)
    costs = (compile_time, _number(fields, "verification_time", where, 0.0), benchmark, own)
    return Record(where, configuration, status, value, runs, _scaled(costs, MILLISECOND))


def _told_apart(
    key: str, entry: Mapping[str, Any], values: Mapping[str, tuple[Value, ...]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration and the fields of an entry where a parameter has the name of a field.

    The key says what the parameters are. What an entry holds under the name of one is a field if it is something else:
    tuners write what they measured over it.
    """
    stated = dict(zip(values, key.split(","), strict=False))
    known = {name: {str(value): value for value in choices} for name, choices in values.items()}
    shared = values.keys() & FIELDS
    fields = {name: value for name, value in entry.items() if str(value) != stated.get(name)}
    chosen = {name: known[name].get(stated.get(name, ""), stated.get(name)) for name in shared}
    return {**entry, **chosen}, fields


def _status(fields: Mapping[str, Any], objective: str, where: str) -> Status:
    """The status of an entry: any of its values may be the name of an error; `invalidity` says which it was."""
    stated = fields.get("invalidity")
    if stated is not None and stated not in T4_STATUS:
        raise SpaceError(f"{where}: invalidity is one of {', '.join(T4_STATUS)}, not {str(stated)[:40]!r}")
    label = Status.CORRECT if stated is None else T4_STATUS[stated]
    for value in fields.values():
        if isinstance(value, str) and value in KERNEL_TUNER_FAILURES:
            return label or KERNEL_TUNER_FAILURES[value]
    for name in ("__error__", objective):
        if isinstance(fields.get(name), str):
            raise SpaceError(f"{where}: {name} is {fields[name]!r}, neither a number nor one of Kernel Tuner's errors")
    return label


def _t4(data: Mapping[str, Any], labels: Labels, path: Path) -> Space:
    results = _required(data, "results", list, "the file")
    if not results:
        raise SpaceError("there is no result")
    metadata = _required(data, "metadata", dict, "the file") if "metadata" in data else {}
    unit = str(metadata.get("timeunit", "seconds")).lower()
    if unit not in UNITS:
        raise SpaceError(f"metadata.timeunit is one of {', '.join(UNITS)}, not {unit!r}")
    first = _required(results[0], "objectives", list, "result 0") if isinstance(results[0], dict) else []
    objective = labels.objective or _objective(first)
    records = [_t4_record(number, result, objective, UNITS[unit]) for number, result in enumerate(results)]
    names = tuple(records[0].configuration)
    for record in records:
        if tuple(record.configuration) != names:
            raise SpaceError(f"{record.where}: its parameters are not those of result 0, in their order")
    values = {name: _in_order(record.configuration[name] for record in records) for name in names}
    kernel = labels.name.partition("/")[0] or path.name.partition(".")[0]
    shown = next(name for name, seconds in UNITS.items() if seconds == UNITS[unit])
    return assemble(
        records, Task(values, objective, shown if objective == "time" else objective, kernel, labels.device), labels
    )


def _in_order(values: Iterable[Value]) -> tuple[Value, ...]:
    """The distinct values: numbers ascending, anything else as they first occur."""
    distinct = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) for value in distinct)
    return tuple(sorted(distinct) if numbers else distinct)  # type: ignore[type-var]


def _t4_record(number: int, result: Any, objective: str, second: float) -> Record:
    where = f"result {number}"
    if not isinstance(result, dict):
        raise SpaceError(f"{where}: a result is an object")
    configuration = _required(result, "configuration", dict, where)
    for name in configuration:
        _required(configuration, name, (int, float, str), where)
    stated = _required(result, "invalidity", str, where)
    if stated not in T4_STATUS:
        raise SpaceError(f"{where}: invalidity is one of {', '.join(T4_STATUS)}, not {stated!r}")
    status = T4_STATUS[stated]
    times = _required(result, "times", dict, where)
    runs = _runs(times.get("runtimes", ()), where)
    measured = {
        str(measurement.get("name")): measurement
        for measurement in _required(result, "measurements", list, where)
        if isinstance(measurement, dict)
    }
    if status is Status.CORRECT and objective not in measured and not (objective == "time" and runs):
        raise SpaceError(f"{where}: there is no measurement of {objective}")
    value = float("nan")
    if status is Status.CORRECT:
        mean = sum(runs) / len(runs) if runs else float("nan")
        value = _number(measured[objective], "value", where) if objective in measured else mean
    compiling = _number(times, "compilation" if "compilation" in times else "compilation_time", where)
    own = _number(times, "framework", where, 0.0) + _number(times, "search_algorithm", where, 0.0)
    benchmark = sum(runs) if runs else _number(times, "benchmark", where, 0.0)
    costs = (compiling, _number(times, "validation", where, 0.0), benchmark, own)
    return Record(where, configuration, status, value, runs if status is Status.CORRECT else (), _scaled(costs, second))


def _scaled(costs: tuple[float, ...], second: float) -> tuple[float, float, float, float]:
    compiling, verifying, benchmarking, own = (cost * second for cost in costs)
    return compiling, verifying, benchmarking, own


def restrictions_of(path: Path) -> tuple[str, ...]:
    """The restrictions of a T1 file, the input form of the tuners' benchmark suites. Raises `SpaceError`."""
    try:
        data = _parse(_text(path))
        space = _required(data, "ConfigurationSpace", dict, "the file") if isinstance(data, dict) else {}
        conditions = _required(space, "Conditions", list, "ConfigurationSpace")
        return tuple(_required(condition, "Expression", str, "a condition") for condition in conditions)
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None


def _required(data: Any, name: str, kind: Any, where: str) -> Any:
    if not isinstance(data, dict) or name not in data:
        raise SpaceError(f"{where}: {name} is missing")
    if not isinstance(data[name], kind):
        raise SpaceError(f"{where}: {name} is of type {type(data[name]).__name__}")
    return data[name]


def _number(data: Mapping[str, Any], name: str, where: str, default: float | None = None) -> float:
    value = default if data.get(name) is None else data[name]
    if value is None:
        raise SpaceError(f"{where}: {name} is missing")
    if not _is_number(value):
        raise SpaceError(f"{where}: {name} is a number, not {str(value)[:40]!r}")
    return float(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a number that fits a float; JSON also knows whole numbers without bound."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def _runs(runs: Any, where: str) -> Sequence[float]:
    if not isinstance(runs, list | tuple) or not all(map(_is_number, runs)):
        raise SpaceError(f"{where}: the times of its runs are a list of numbers")
    return runs
