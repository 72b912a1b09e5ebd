"""`leirgym workloads`: write the shipped `.leir` files anew from their PyTorch modules, or check them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from envs.common.console import Answer, Exit, columns, verb
from envs.leir_env import workloads as shipped
from envs.leir_env.key import key
from envs.leir_env.printer import show


def texts() -> Iterator[tuple[str, str, str]]:
    """Import every shipped workload from PyTorch; yield its suite, name and canonical text."""
    from envs.leir_env.from_torch import from_torch
    from envs.leir_env.torch_files import instantiate

    for name, (suite, reference) in shipped.imported().items():
        yield suite, name, show(from_torch(*instantiate(reference)).program)


def regenerate(folder: Path = shipped.SUITES) -> tuple[str, ...]:
    """Write the `.leir` file of every workload below `folder`; return the names whose text changed."""
    changed = []
    for suite, name, text in texts():
        path = folder / suite / f"{name}.leir"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    return tuple(changed)


@verb("workloads")
@click.option("--regenerate", "write", is_flag=True, help="Import every workload and write its file.")
@click.option("--check", is_flag=True, help="Import every workload and compare it with its file.")
def workloads(write: bool, check: bool) -> Answer:
    """List the shipped workloads with their PyTorch modules; write or check their files."""
    if write and check:
        raise click.UsageError("--regenerate and --check exclude each other")
    if write:
        changed = regenerate()
        return Answer(f"{len(changed)} of {len(shipped.imported())} files written anew", {"changed": changed})
    if check:
        different = [name for _, name, text in texts() if show(shipped.load(name).program) != text]
        verdict = f"{', '.join(different)}: differ" if different else "all files are what PyTorch gives"
        return Answer(verdict, {"different": different}, Exit.NEGATIVE if different else Exit.OK)
    rows = [("name", "PyTorch module", "inputs", "key")]
    for name, (_, reference) in shipped.imported().items():
        arguments = ", ".join(f"{argument}={value}" for argument, value in reference.arguments)
        rows.append((name, f"{reference.target}({arguments})", reference.inputs, key(shipped.load(name).program)))
    data = [dict(zip(("name", "torch", "inputs", "key"), row, strict=True)) for row in rows[1:]]
    return Answer(columns(rows), {"workloads": data})
