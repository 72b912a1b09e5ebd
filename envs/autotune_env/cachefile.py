"""A Kernel Tuner cache that grows by one line for each configuration, and is whole after every line.

A recording that is interrupted, even by `kill -9`, goes on where it stopped: a line that was cut is dropped. While it
is open the file lacks its two closing braces, as Kernel Tuner's own do; Kernel Tuner and `readers` read both forms.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from envs.autotune_env.domain import Domain, SpaceError
from envs.autotune_env.kernels.definition import Kernel
from envs.autotune_env.kernels.results import Failed, Measured
from envs.autotune_env.space import Status

FAILURES = {
    Status.CONSTRAINTS: "InvalidConfig",
    Status.COMPILE: "CompilationFailedConfig",
    Status.RUNTIME: "RuntimeFailedConfig",
    Status.CORRECTNESS: "RuntimeFailedConfig",
    Status.TIMEOUT: "RuntimeFailedConfig",
}
"""Kernel Tuner's names; an entry says which of the last three it was under `invalidity`."""

CLOSING = "}\n}"

MAX_REASON = 400
"""Characters kept of what a failure says."""

Entry = dict[str, Any]


def header(kernel: Kernel, domain: Domain, device: str) -> dict[str, Any]:
    """What a cache says before its entries."""
    listed = {parameter.name: list(parameter.values) for parameter in domain.parameters}
    listed |= {name: [value] for name, value in domain.constants.items()}
    size = [kernel.constants[name] for name in (kernel.geometry.extent if kernel.geometry else kernel.shape)]
    return {
        "device_name": device,
        "kernel_name": kernel.application,
        "problem_size": size,
        "tune_params_keys": list(domain.order),
        "tune_params": {name: listed[name] for name in domain.order},
        "objective": kernel.objective,
    }


def entry(kernel: Kernel, configuration: Mapping[str, Any], result: Measured | Failed, compiling: float) -> Entry:
    """The entry of a configuration that took so many seconds to compile."""
    spent = {
        "compile_time": compiling * 1e3,
        "verification_time": 0.0,
        "benchmark_time": 0.0,
        "strategy_time": 0.0,
        "framework_time": 0.0,
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if isinstance(result, Failed):
        failed = {"invalidity": result.status.label, "reason": result.reason[:MAX_REASON]}
        spent["verification_time"] = 0.0 if result.status is Status.COMPILE else result.seconds * 1e3
        name = FAILURES[result.status]
        return {**configuration, **spent, kernel.objective: name, "__error__": name, **failed}
    mean = sum(result.runs) / len(result.runs)
    spent |= {"verification_time": result.verification * 1e3, "benchmark_time": result.benchmark * 1e3}
    measured = {"time": mean, "times": list(result.runs), kernel.objective: kernel.objective_of(mean, configuration)}
    return {**configuration, **spent, **measured, "invalidity": Status.CORRECT.label}


class CacheFile:
    """An open cache. Raises `SpaceError` where the file holds something else than what is to be recorded."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        """What is recorded, by the values of the configuration with commas between."""
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        start = "{\n" + begin + '"cache": {'
        if text and not text.startswith(start[: len(text)]):
            raise SpaceError(f"{path}: it is the cache of another device, kernel, or set of parameters; name another")
        kept = [start]
        for line in text[len(start) :].removesuffix(CLOSING).split("\n")[1:]:
            found = _parsed(line)
            if found:
                self.entries |= found
                kept.append(line.removesuffix(",") + ",")
        whole = "\n".join(kept)
        if whole != text:
            fresh = path.with_suffix(path.suffix + ".new")
            fresh.write_text(whole, encoding="utf-8")
            fresh.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, key: str, values: Entry) -> None:
        """Add an entry; it is on the disk when this returns."""
        self.entries[key] = values
        self._file.write(f"\n{json.dumps({key: values})[1:-1]},")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Make the file plain JSON."""
        if self._file.closed:
            return
        self._file.close()
        text = self.path.read_text(encoding="utf-8").removesuffix(",")
        self.path.write_text(text + CLOSING, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _parsed(line: str) -> dict[str, Entry]:
    """The entry on a line; nothing where it was cut."""
    try:
        found = json.loads("{" + line.removesuffix(",") + "}")
    except json.JSONDecodeError:
        return {}
    return {key: values for key, values in found.items() if isinstance(values, dict)}
