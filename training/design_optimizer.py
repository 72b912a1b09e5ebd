"""`leirgym design`: evolve an optimiser on tuning spaces, and judge it on spaces that it has never seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from envs.autotune_env import suite
from envs.autotune_env.cli import folder_option, reading
from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.space import Space
from envs.common.console import Answer, BadInput, Missing, columns, verb
from envs.common.progress import progress
from training.design.archive import Archive, ArchiveError, Record
from training.design.briefing import INFO
from training.design.comparison import compare, table
from training.design.designers import Complete, Designer, Grammar, LanguageModel, verdict
from training.design.program import load
from training.design.race import RUNGS
from training.design.sandbox import SECONDS, Sandbox
from training.design.study import Plan, ancestry, lineage, run

BASELINES = ("genetic-tuned", "annealing-tuned", "evolution-tuned")
"""What a designed optimiser is compared with on the held-out spaces."""

MAX_TOKENS = 4_096
"""The longest answer of a language model."""


@verb("design")
@click.argument("train", nargs=-1, required=True)
@click.option("--test", multiple=True, help="A space to judge the result on; may be given several times.")
@click.option("--repeats", type=click.IntRange(min=1), default=100, show_default=True, help="Runs on each of those.")
@click.option("--archive", "path", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON lines.")
@click.option("--programs", type=click.IntRange(min=1), default=100, show_default=True, help="How many to try.")
@click.option("--survivors", type=click.IntRange(min=2), default=8, show_default=True, help="Parents to breed from.")
@click.option("--founders", type=click.IntRange(min=1), default=16, show_default=True, help="New ones at the start.")
@click.option(
    "--rungs", default=",".join(map(str, RUNGS)), show_default=True, help="Runs on each space, rung by rung of a race."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="A program is given up that takes longer for a run, on average.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that run programs."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--model", help="A language model that designs, by its address; without one, a grammar does.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="Of the model.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, default="none", help="For the server.")
@click.option(
    "--info", type=click.Choice(tuple(INFO)), default="none", show_default=True, help="What the model is told."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the best program here, and its lineage beside it, as .json.",
)
@folder_option
def design(
    train: tuple[str, ...],
    test: tuple[str, ...],
    repeats: int,
    path: Path,
    programs: int,
    survivors: int,
    founders: int,
    rungs: str,
    seconds: float,
    workers: int,
    seed: int,
    model: str | None,
    temperature: float,
    api_key: str,
    info: str,
    out: Path | None,
    folder: Path | None,
) -> Answer:
    """Evolve an optimiser on the spaces TRAIN: names, applications or files.

    Programs are proposed, raced in a sandbox, and recorded; the same command goes on where it was stopped. With --test,
    the best one is compared with tuned GA, SA and DE on spaces that it has not seen.
    """
    plan = Plan(programs, survivors, founders, _rungs(rungs), seed)
    with reading():
        known = suite.resolve(train, None, folder, samples=False)
        unseen = suite.resolve(test, None, folder, samples=False) if test else ()
    shared = {space.name for space in known} & {space.name for space in unseen}
    if shared:
        raise BadInput(f"--test: {', '.join(sorted(shared))} is trained on")
    designer = _designer(model, temperature, api_key, info, known)
    settings = {
        "spaces": [space.name for space in known],
        "designer": designer.name,
        "info": info,
        "survivors": survivors,
        "founders": founders,
        "rungs": list(plan.rungs),
        "seed": seed,
    }
    try:
        archive = Archive(path, settings)
    except ArchiveError as error:
        raise BadInput(str(error)) from error
    with Sandbox(known, seconds, workers=workers) as sandbox, progress("design", programs) as report:
        best = run(
            plan, designer, sandbox, archive, lambda done, record: report(done, f"{record.operator}: {verdict(record)}")
        )
    return _answer(best, archive.records, settings, unseen, repeats, out)


def _command(settings: Mapping[str, Any], programs: int) -> str:
    """The command of a study, without where its files are."""
    options = {"programs": programs} | {name: settings[name] for name in ("survivors", "founders", "seed")}
    options["rungs"] = ",".join(map(str, settings["rungs"]))
    if settings["designer"] != Grammar().name:
        options |= {"model": settings["designer"], "info": settings["info"]}
    return " ".join(["leirgym design", *settings["spaces"], *(f"--{name} {value}" for name, value in options.items())])


def _rungs(text: str) -> tuple[int, ...]:
    try:
        rungs = tuple(map(int, text.split(",")))
    except ValueError:
        raise BadInput(f"--rungs: numbers with commas between, not {text!r}") from None
    if not all(first < second for first, second in zip((0, *rungs), rungs, strict=False)):
        raise BadInput(f"--rungs: they rise from 1 or more, not {text}")
    return rungs


def _designer(model: str | None, temperature: float, api_key: str, info: str, spaces: Sequence[Space]) -> Designer:
    if model is None:
        if info != "none":
            raise BadInput("--info goes with --model: a grammar is told nothing")
        return Grammar()
    return LanguageModel(completing(model, temperature, api_key), model, INFO[info](spaces))


def completing(model: str, temperature: float, api_key: str) -> Complete:
    """A function that has the model at an address complete a conversation. Raises `Missing` if it is not there."""
    from agents.llm.options import open_policy
    from agents.llm.policy import Message, Role, Sampling, Unavailable

    try:
        policy = open_policy(model, api_key)
    except Unavailable as error:
        raise Missing(str(error)) from error
    sampling = Sampling(temperature=temperature, max_tokens=MAX_TOKENS)

    def complete(messages: Sequence[Any]) -> str:
        conversation = tuple(Message(Role(message["role"]), message["content"]) for message in messages)
        ((answer,),) = policy.act_batch([conversation], sampling)
        if answer.failure:
            raise Missing(f"{model}: {answer.failure}")
        return answer.text

    return complete


def _answer(
    best: Sequence[Record],
    records: Sequence[Record],
    settings: Mapping[str, Any],
    unseen: Sequence[Space],
    repeats: int,
    out: Path | None,
) -> Answer:
    failed = sum(1 for record in records if record.result.failure)
    data: dict[str, Any] = {"programs": len(records), "failed": failed, "survivors": [asdict(one) for one in best]}
    lines = [f"{len(records):,} programs, {failed:,} of them failed", ""]
    if not best:
        return Answer(f"{lines[0]}; no program survived", data)
    lines.append(columns([(str(one.number), verdict(one), one.idea) for one in best]))
    data["lineage"] = [one.number for one in lineage(records, best[0].number)]
    if unseen:
        rivals = {"designed": load(best[0].source)} | {name: make_optimizer(name) for name in BASELINES}
        found = compare(rivals, unseen, repeats)
        lines += ["", table(found)]
        data["held_out"] = {
            who: {name: asdict(one) for name, one in all_.items()} for who, all_ in found.scores.items()
        }
    if out is not None:
        story = out.with_suffix(".json")
        out.write_text(best[0].source)
        story.write_text(
            json.dumps(
                {"command": _command(settings, len(records)), **ancestry(records, best[0].number, settings)}, indent=1
            )
            + "\n"
        )
        lines.append(f"wrote {out} and {story}")
    return Answer("\n".join(lines), data)
