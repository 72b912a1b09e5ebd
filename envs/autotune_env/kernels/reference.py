"""What a kernel reads, and what it must give: made once in a process, and kept for the next configuration."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from envs.autotune_env.kernels.definition import Array, Configuration
from envs.autotune_env.kernels.results import Task


@functools.lru_cache(maxsize=1)
def inputs(task: Task) -> Mapping[str, Array]:
    """The arrays, by name."""
    kernel = task.kernel
    return kernel.inputs(kernel.constants)


def answer(task: Task, configuration: Configuration) -> Array:
    """The output of a kernel without mistakes."""
    return _answer(task, tuple(configuration[name] for name in task.kernel.answer_depends))


@functools.lru_cache(maxsize=16)
def _answer(task: Task, values: tuple[int, ...]) -> Array:
    kernel = task.kernel
    chosen = dict(zip(kernel.answer_depends, values, strict=True))
    return kernel.answer(inputs(task), {**kernel.constants, **chosen})
