"""Whether an imported workload computes what PyTorch does, is fit to be a task, and runs: at its small size."""

from __future__ import annotations

import numpy as np
import torch

from envs.leir_env.build import build
from envs.leir_env.from_torch import from_torch
from envs.leir_env.inputs import draw
from envs.leir_env.interp import run
from envs.leir_env.ir import DType, Program, Role
from envs.leir_env.oracle import Oracle, admit
from envs.leir_env.schedule import default_schedule
from envs.leir_env.strategies.base import Exactness
from envs.leir_env.suite_tables import Reference
from envs.leir_env.torch_files import instantiate

AGREEMENT = 1e-10
"""Largest accepted difference in float64, relative to the largest element of the output."""


def problems(reference: Reference) -> tuple[str, ...]:
    """Say where the imported module is wrong or unfit; nothing if neither.

    Module and program run in float64 on the same drawn inputs, with the module's own weights; that the program is
    a task is for `oracle.admit` to say. The default schedule is built and judged on every input set.
    """
    torch.set_num_threads(1)
    module, inputs = instantiate(reference)
    imported = from_torch(module, inputs, compare=False)
    program = imported.program
    given = draw(program, "normal", 0)
    tensors = [torch.from_numpy(given[tensor.name]) for tensor in program.with_role(Role.INPUT)]
    with torch.no_grad():
        expected = module.double()(*(t.double() if t.is_floating_point() else t for t in tensors)).numpy()
    (output,) = program.outputs
    result = run(program, given | dict(imported.parameters), DType.F64)[output.name]
    error = float(np.abs(result - expected).max()) / max(1.0, float(np.abs(expected).max()))
    wrong = () if error <= AGREEMENT else (f"differs from PyTorch by {error:.1e} of its largest element",)
    return (*wrong, *admit(program), *misscheduled(program))


def misscheduled(program: Program) -> tuple[str, ...]:
    """Say on which input sets the default schedule, built for this machine, is wrong."""
    oracle, kernel = Oracle(program), build(default_schedule(program))
    found = []
    for name in oracle.sets:
        outputs = kernel.run(draw(program, name, oracle.seed))
        checks = oracle.judge(name, tuple(outputs[tensor.name] for tensor in program.outputs), Exactness.REASSOCIATES)
        found += [f"the default schedule is wrong: {check.name}" for check in checks if not check.passed]
    return tuple(found)
