"""The suites that are defined in PyTorch here, in any size and dtype: `single` and `composite`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import torch
from torch import nn

from datagen.workloads.attention import ATTENTIONS
from datagen.workloads.chains import CONV2D, CONV3D, GEMM
from datagen.workloads.definition import Definition
from datagen.workloads.single import SINGLE
from datagen.workloads.twins import TWINS

SUITES: Mapping[str, Mapping[str, Definition]] = {
    "single": SINGLE,
    "composite": TWINS | GEMM | CONV2D | CONV3D | ATTENTIONS,
}
"""Definitions by suite and name."""


DTYPES = {"f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


def module(suite: str, name: str, dtype: str = "f32", **size: int) -> nn.Module:
    """The module of a workload in a size and float dtype, see `Definition.module`."""
    return SUITES[suite][name].module(size).to(DTYPES[dtype])


def table(suite: str) -> str:
    """The table of a suite as the environments read it (TOML), see `envs.leir_env.suite_tables`."""
    entries = (_entry(name, definition) for name, definition in SUITES[suite].items())
    return "\n".join(chain(("# From datagen/workloads; written by `leirgym workloads --regenerate`.\n",), entries))


def _entry(name: str, definition: Definition) -> str:
    known = {word: getattr(definition.sizes, word) for word in ("small", "default", "large")}
    extents = {word: ", ".join(f"{name} = {extent}" for name, extent in size.items()) for word, size in known.items()}
    lines = [
        *([f"# {definition.remark}"] if definition.remark else []),
        f"[{name}]",
        f'family = "{definition.family}"',
        *(f"{word} = {{ {text} }}" for word, text in extents.items()),
        f'torch = "{__name__}:{module.__name__}"',
        f'inputs = "{definition.inputs}"',
    ]
    return "\n".join(lines) + "\n"
