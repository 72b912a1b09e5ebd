"""Write spaces as Kernel Tuner does, to read them back."""

from __future__ import annotations

from envs.autotune_env.space import Status

ERRORS = {
    Status.CONSTRAINTS: "InvalidConfig",
    Status.COMPILE: "CompilationFailedConfig",
    Status.RUNTIME: "RuntimeFailedConfig",
}


def to_cache(space, new: bool = False) -> dict:
    """The cache of a space with objective `time`; `new` writes failures under `__error__`, as from 1.4 on."""
    values = {p.name: list(p.values) for p in space.domain.parameters}
    values |= {name: [value] for name, value in space.domain.constants.items()}
    return {
        "device_name": space.device,
        "kernel_name": space.kernel,
        "problem_size": 4096,
        "tune_params_keys": list(space.domain.order),
        "tune_params": {name: values[name] for name in space.domain.order},
        "objective": "time",
        "cache": {space.domain.label(row): _entry(space, row, new) for row in range(len(space))},
    }


def _entry(space, row: int, new: bool) -> dict:
    compiling, verifying, benchmark, own = (space.costs[row].astype(float) * 1e3).tolist()
    entry = {
        **space.domain.value_of(row),
        "compile_time": compiling,
        "verification_time": verifying,
        "benchmark_time": benchmark,
        "strategy_time": 0,
        "framework_time": own,
        "timestamp": "2026-01-01 00:00:00+00:00",
    }
    status = Status(space.status[row])
    if status is Status.CORRECT:
        return entry | {"time": float(space.values[row]), "times": space.samples[row].astype(float).tolist()}
    return entry | ({"__error__": ERRORS[status]} if new else {"time": ERRORS[status]})
