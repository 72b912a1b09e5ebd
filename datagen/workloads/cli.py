"""`leirgym workloads`: write tables and `.leir` files of the suites anew from their PyTorch modules, or check them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import click

from envs.common.console import Answer, Exit, columns, verb
from envs.leir_env import workloads as shipped
from envs.leir_env.key import key
from envs.leir_env.printer import show
from envs.leir_env.suite_tables import Entry, Reference, entries, tables

Result = TypeVar("Result")


def everything() -> tuple[Entry, ...]:
    """Every workload that is imported from PyTorch."""
    return tuple(entry for suite in tables() for entry in entries(suite))


def texts(chosen: Iterable[Entry], processes: int = 1) -> Iterator[tuple[Entry, str]]:
    """Import workloads from PyTorch; yield the canonical text of each."""
    chosen = tuple(chosen)
    references = [entry.reference(entry.size) for entry in chosen]
    yield from zip(chosen, _mapped(text, references, processes), strict=True)


def text(reference: Reference) -> str:
    """The canonical text of a module."""
    import torch

    from envs.leir_env.from_torch import program_of

    torch.set_num_threads(1)
    return show(program_of(reference))


def different(chosen: Iterable[Entry], processes: int = 1) -> list[str]:
    """Name the workloads whose file is not what PyTorch gives."""
    return [
        f"{entry.suite}/{entry.name}"
        for entry, text in texts(chosen, processes)
        if not entry.path.exists() or entry.path.read_text(encoding="utf-8") != text
    ]


def unfit(chosen: Iterable[Entry], processes: int = 1) -> list[str]:
    """Say which workloads differ from PyTorch or are no tasks at their small size, and why."""
    sized = [entry for entry in chosen if entry.sizes]
    found = _mapped(_problems, [entry.reference(entry.sizes["small"]) for entry in sized], processes)
    return [
        f"{entry.suite}/{entry.name}: {reason}"
        for entry, reasons in zip(sized, found, strict=True)
        for reason in reasons
    ]


def _problems(reference: Reference) -> tuple[str, ...]:
    from datagen.workloads.checks import problems

    return problems(reference)


def _mapped(call: Callable[[Reference], Result], references: Sequence[Reference], processes: int) -> Iterator[Result]:
    if processes == 1:
        yield from map(call, references)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(call, references)


def write(path: Path, content: str) -> bool:
    """Write a file unless it has this content already; say whether it was written."""
    if path.exists() and path.read_text(encoding="utf-8") == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return True


def tables_of_definitions() -> dict[Path, str]:
    """The tables that follow from definitions in PyTorch, by path."""
    from datagen.workloads.suites import SUITES, table

    return {shipped.SUITES / f"{suite}.toml": table(suite) for suite in SUITES}


@verb("workloads")
@click.option("--regenerate", "renew", is_flag=True, help="Import every workload and write its file.")
@click.option(
    "--check",
    is_flag=True,
    help="Import every workload; compare it with its file and PyTorch, and run its default schedule.",
)
@click.option(
    "--processes", type=click.IntRange(min=1), default=os.cpu_count(), help="That import.  [default: all cores]"
)
def workloads(renew: bool, check: bool, processes: int) -> Answer:
    """List the shipped workloads with their PyTorch modules; write or check their files."""
    if renew and check:
        raise click.UsageError("--regenerate and --check exclude each other")
    if renew:
        changed = [path.name for path, content in tables_of_definitions().items() if write(path, content)]
        entries.cache_clear()
        imported = texts(everything(), processes)
        changed += [f"{entry.suite}/{entry.name}" for entry, content in imported if write(entry.path, content)]
        return Answer(f"{len(changed)} of {len(everything())} files written anew", {"changed": changed})
    if check:
        wrong = [p.name for p, content in tables_of_definitions().items() if p.read_text(encoding="utf-8") != content]
        wrong += different(everything(), processes)
        refused = unfit(everything(), processes)
        lines = [*(f"{name}: is not what PyTorch gives" for name in wrong), *refused]
        verdict = "\n".join(lines) or f"all {len(everything())} files are what PyTorch gives, and fit to be tasks"
        return Answer(verdict, {"different": wrong, "unfit": refused}, Exit.NEGATIVE if lines else Exit.OK)
    rows = [("name", "family", "split", "operations", "bytes", "inputs", "key")]
    for name, entry in shipped.imported().items():
        workload = shipped.load(name)
        inputs = workload.reference.inputs if workload.reference else entry.inputs
        figures = (f"{workload.flops:.3g}", f"{workload.bytes:.3g}")
        rows.append((name, workload.family, workload.split, *figures, inputs, key(workload.program)))
    data = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    return Answer(columns(rows), {"workloads": data})
