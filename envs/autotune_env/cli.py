"""`leirgym spaces`: look at tuning spaces and convert them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from envs.autotune_env import compact, readers, suite
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.records import Labels
from envs.autotune_env.score import Scale, scale
from envs.autotune_env.space import Space
from envs.common.console import Answer, BadInput, Missing, Verbs, columns, verb

spaces = Verbs(
    {
        "list": ("envs.autotune_env.cli:list_spaces", "Name the spaces there are."),
        "show": ("envs.autotune_env.cli:show_space", "Parameters, failures, distribution, cut-off of a space."),
        "convert": ("envs.autotune_env.cli:convert_space", "Make a compact file of a cache or a T4 file."),
        "plot": ("envs.autotune_env.cli:plot_space", "Draw a space to an image file."),
    },
    name="spaces",
    help="List, show, convert and plot tuning spaces.",
)

folder_option = click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where names are looked up: application/device.npz.  [default: the spaces that ship]",
)


split_option = click.option("--split", type=click.Choice(suite.PARTS), help="Only spaces to train on, or to test on.")
by_option = click.option(
    "--by", type=click.Choice(tuple(suite.HELD_OUT)), default="device", show_default=True, help="What a split goes by."
)


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Turn what is wrong with a space into one line and exit code 2."""
    try:
        yield
    except SpaceError as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}") from error


@verb("list")
@click.argument("application", required=False, default="")
@folder_option
@split_option
@by_option
def list_spaces(application: str, folder: Path | None, split: str | None, by: str) -> Answer:
    """Name the spaces there are, of one APPLICATION or of all."""
    found = suite.names(folder, application)
    chosen = suite.split(found, split, by) if split else found
    rows = [("name", "configurations", "failed", "parameters", "device")]
    with reading():
        for space in (suite.load(name, folder, samples=False) for name in chosen):
            failed = sum(space.failures.values())
            parameters = str(len(space.domain.parameters))
            rows.append((space.name, f"{len(space):,}", f"{failed:,}", parameters, space.device))
    note = "synthetic<seed>/<device> is made on the spot: leirgym spaces show synthetic0/north"
    return Answer(columns(rows) if chosen else "no space", {"spaces": chosen}, notes=[] if chosen else [note])


@verb("show")
@click.argument("space")
@folder_option
def show_space(space: str, folder: Path | None) -> Answer:
    """Describe SPACE: a name, a .npz, a Kernel Tuner cache or a T4 file."""
    with reading():
        loaded = suite.load(space, folder)
        data = _described(loaded, scale(loaded))
    shown = {name: value for name, value in data.items() if name not in ("parameters", "restrictions", "constants")}
    lines = [columns([(name.replace("_", " "), _shown(value)) for name, value in shown.items()]), "", "parameters"]
    lines += [f"  {name}: {' '.join(map(str, values))}" for name, values in data["parameters"].items()]
    lines += [f"  {name}: {value}, fixed" for name, value in data["constants"].items()]
    lines += ["restrictions", *(f"  {rule}" for rule in data["restrictions"])] if data["restrictions"] else []
    return Answer("\n".join(lines), data)


def _described(space: Space, measure: Scale) -> dict[str, Any]:
    values = space.values[space.correct]
    best, worst = (values.max(), values.min()) if space.higher_is_better else (values.min(), values.max())
    return {
        "name": space.name,
        "kernel": space.kernel,
        "device": space.device,
        "problem_size": space.problem_size,
        "objective": f"{space.objective} in {space.unit}, {'more' if space.higher_is_better else 'less'} is better",
        "configurations": len(space),
        "cartesian": space.domain.cartesian,
        "failures": space.failures,
        "samples": 0 if space.samples is None else space.samples.shape[1],
        "best": float(best),
        "median": float(np.median(values)),
        "worst": float(worst),
        "seconds_to_record": float(space.seconds.sum()),
        "cutoff_evaluations": measure.evaluations[1],
        "cutoff_seconds": measure.end,
        "source": dict(space.source),
        "parameters": {parameter.name: list(parameter.values) for parameter in space.domain.parameters},
        "constants": dict(space.domain.constants),
        "restrictions": list(space.domain.restrictions),
    }


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.5g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value) or "unknown"


@verb("convert")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", default="", help="application/device.  [default: from the file]")
@click.option("--device", default="", help="The device's full name, where the file lacks it.")
@click.option("--objective", default="", help="What is tuned, where the file lacks it or holds several.")
@click.option("--maximise/--minimise", "higher", default=None, help="Whether more is better.  [default: by its name]")
@click.option(
    "--rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A T1 file; every configuration that its conditions allow, and no other, must have been recorded.",
)
@click.option("--samples", type=click.IntRange(min=0), help="Keep so many samples of each.  [default: all]")
@click.option("--licence", default="", help="Of the recording; kept in the file.")
def convert_space(
    source: Path,
    out: Path,
    name: str,
    device: str,
    objective: str,
    higher: bool | None,
    rules: Path | None,
    samples: int | None,
    licence: str,
) -> Answer:
    """Make the compact file OUT (.npz) of SOURCE: a Kernel Tuner cache or a T4 file, .gz of either."""
    if out.suffix != compact.SUFFIX:
        raise BadInput(f"{out}: a compact space is a {compact.SUFFIX} file")
    with reading():
        restrictions = readers.restrictions_of(rules) if rules else None
        origin = {"file": source.name, **({"licence": licence} if licence else {})}
        space = readers.read(source, Labels(name, device, objective, higher, restrictions, origin))
        scale(space)
        content = compact.dump(space, samples)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    data = {"name": space.name, "configurations": len(space), "failures": space.failures, "bytes": len(content)}
    failed = f", {sum(space.failures.values()):,} of them failed" if space.failures else ""
    return Answer(f"{out}: {space.name}, {len(space):,} configurations{failed}, {len(content) / 1024:,.0f} KiB", data)


@verb("plot")
@click.argument("space")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="A .png, .svg or .pdf.")
@folder_option
def plot_space(space: str, out: Path, folder: Path | None) -> Answer:
    """Draw SPACE: its distribution, and what random search is expected to find."""
    from envs.autotune_env.plot import plot

    with reading():
        loaded = suite.load(space, folder, samples=False)
        try:
            plot(loaded, out)
        except ImportError as error:
            raise Missing("plots need matplotlib: pip install 'leirgym[plot]'") from error
        except ValueError as error:
            raise BadInput(f"{out}: {error}") from error
    return Answer(str(out), {"name": loaded.name, "out": str(out)})
