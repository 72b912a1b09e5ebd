"""Commands that show and rewrite programs: list, show, strategies, legal, apply, verify, replay."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envs.common import trace as traces
from envs.common.actions import Action, ActionError, parse_action
from envs.common.console import Answer, BadInput, Exit, columns, verb
from envs.common.evaluation import Evaluation
from envs.common.moves import shorten
from envs.common.settings import SettingError, settings
from envs.common.store import Store, StoreError
from envs.leir_env import catalogue, strategies, workloads
from envs.leir_env.ir import Program
from envs.leir_env.key import key
from envs.leir_env.parser import ParseError
from envs.leir_env.printer import show, show_tensor
from envs.leir_env.strategies import REGISTRY, Exactness, Strategy
from envs.leir_env.workloads import Workload

if TYPE_CHECKING:
    from envs.leir_env.problem import LeirProblem, LeirState

AnyStore = TypeVar("AnyStore", bound=Store)

BAD_INPUT = (ParseError, ActionError, workloads.WorkloadError, traces.TraceError, StoreError, SettingError)
"""What malformed input raises; each names the thing, the place and the rule."""

TARGETS = ("llvm", "cuda")

target_option = click.option(
    "--target", type=click.Choice(TARGETS), default="llvm", show_default=True, help="What it is compiled for."
)
store_option = click.option(
    "--store",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that keeps measurements.  [default: see doctor]",
)
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of a measured kernel.  [default: 1]"
)
inputs_option = click.option(
    "--inputs", help="Inputs of file.py:Class, such as 'f32[16,64] i64[16]'.  [default: its get_inputs()]"
)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what is wrong with the user's input into one located line and exit code 2."""
    try:
        yield
    except BAD_INPUT as error:
        raise BadInput(f"{_called(what)}: {error}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{_called(what)}: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise BadInput(f"{_called(what)}: {error.strerror or error}") from error


def _called(what: str) -> str:
    return {"-": "standard input", "": "''"}.get(what, shorten(what))


def read_text(what: str) -> str:
    """The text of a file, or of standard input for `-`, cut off where it is longer than anything may be."""
    with reading(what), contextlib.ExitStack() as stack:
        file = sys.stdin if what == "-" else stack.enter_context(open(what, encoding="utf-8"))
        return file.read(traces.MAX_CHARACTERS + 1)


def read_workload(what: str, target: str = "llvm") -> Workload:
    """A shipped name, a URI, a `.leir` file, LEIR text, or `-` for LEIR text on standard input.

    Programs that aren't shipped are verified for `target`.
    """
    if what == "-" or what.endswith(".leir"):
        return _verified(read_text(what), what, target)
    if "->" in what:
        return _verified(what, "text", target)
    with reading(what):
        return workloads.load(what)


def _verified(text: str, what: str, target: str) -> Workload:
    from envs.leir_env import verify

    with reading(what):
        return replace(workloads.load(verify.load(text, target)), name=Path(what).stem)


def read_actions(texts: Iterable[str]) -> tuple[Action, ...]:
    """Actions as they are written."""
    with reading("action"):
        return tuple(parse_action(text) for text in texts)


def open_store(path: Path | None, kind: type[AnyStore]) -> AnyStore:
    """The store at `path`, or the default one."""
    with reading(str(path or "store")):
        return kind(path or settings().store)


def thread_count(threads: int | None) -> int:
    """The threads asked for, or those of the settings."""
    with reading("LEIRGYM_THREADS"):
        return threads or settings().threads


@verb("list")
@click.argument("suite", required=False)
def list_workloads(suite: str | None) -> Answer:
    """Name the shipped workloads, of one SUITE or of all."""
    with reading("suite"):
        chosen = [suite] if suite else workloads.suites()
        found = {suite: [workloads.load(name) for name in workloads.names(suite)] for suite in chosen}
    rows = [("name", "uri", "family", "signature")]
    data = []
    for suite, members in found.items():
        listed = [(w.name, w.uri, w.family, signature(w.program)) for w in members]
        data += [dict(zip(("suite", *rows[0]), (suite, *row), strict=True)) for row in listed]
        rows += [*([] if len(found) == 1 else [(f"{suite} ({len(listed)})", "", "", "")]), *listed]
    return Answer(columns(rows), {"workloads": data})


def signature(program: Program) -> str:
    """Inputs and outputs on one line."""
    given, made = (" ".join(map(show_tensor, tensors)) for tensors in (program.inputs, program.outputs))
    return f"{given} -> {made}"


FORMS = ("leir", "tir", "cuda", "source")


@verb("show")
@click.argument("workload")
@click.option("--tir", "form", flag_value="tir", help="What it is lowered to: TVM's TIR.")
@click.option(
    "--cuda", "form", flag_value="cuda", help="The generated CUDA; loops that are not bound are mapped plainly."
)
@click.option("--source", "form", flag_value="source", help="The generated assembly for this CPU.")
@target_option
@click.option("--from", "source_form", type=click.Choice(["steptp"]), help="Read the flat form of Step-TP instead.")
@click.option("--shapes", help="With --from: what is given, 'A:f32[16,64] C:f32[16,64]', or a file of it.")
@click.option("--bound", is_flag=True, help="With --from: keep bound loops; the target is cuda.")
def show_program(
    workload: str, form: str | None, target: str, source_form: str | None, shapes: str | None, bound: bool
) -> Answer:
    """Print WORKLOAD: a shipped name, leir://suite/name?n=64, a .leir file, LEIR text, or - for stdin.

    With --from, WORKLOAD is a text, a file, or - for stdin in another form.
    """
    notes: tuple[str, ...] = ()
    if source_form is None:
        loaded = read_workload(workload, "cuda" if form == "cuda" else target)
    elif shapes is None:
        raise BadInput(f"--from {source_form} needs --shapes: the text declares nothing")
    else:
        loaded, notes = _read_flat(workload, shapes, bound)
    text = render(loaded.program, form or "leir")
    data = {"name": loaded.name, "form": form or "leir", "key": key(loaded.program), "text": text}
    return Answer(text, data | ({"notes": list(notes)} if source_form else {}), notes=notes)


def _read_flat(what: str, shapes: str, bound: bool) -> tuple[Workload, tuple[str, ...]]:
    """A program in the flat form, and what could not stay as it was written."""
    from envs.leir_env import steptp

    text = what if "^{" in what else read_text(what)
    given = shapes if ":" in shapes else read_text(shapes)
    with reading("text" if text is what else what):
        found = steptp.read(text, given, bound)
    name = "text" if text is what else Path(what).stem
    return replace(workloads.load(found.program), name=name), found.notes


def render(program: Program, form: str) -> str:
    """The program as LEIR, TIR, CUDA, or assembly."""
    if form == "leir":
        return show(program)
    from envs.leir_env import build, gpu_schedule, lower

    try:
        if form == "source":
            return build.build(program).source()
        if form == "cuda":
            return build.cuda_source(gpu_schedule.gpu_schedule(program))
        return str(lower.lower(program).script())
    except build.BuildError as error:
        raise BadInput(str(error)) from error


@verb("strategies")
@click.argument("name", required=False)
def list_strategies(name: str | None) -> Answer:
    """List the strategies; with NAME, explain one: what it requires, rewrites, and takes."""
    if name is None:
        rows = [("level", "strategy", "sites", "parameters", "meaning")]
        rows += [
            (s.level, s.name, " ".join(s.site_kinds), " ".join(p.name for p in s.parameters), catalogue.meaning(s))
            for s in REGISTRY.values()
        ]
        return Answer(columns(rows), {"strategies": [_as_json(s) for s in REGISTRY.values()]})
    if name not in REGISTRY:
        close = difflib.get_close_matches(name, REGISTRY, 1)
        raise BadInput(f"no strategy is called {name}" + (f"; did you mean {close[0]}?" if close else ""))
    strategy = REGISTRY[name]
    return Answer(catalogue.entry(strategy), _as_json(strategy))


def _as_json(strategy: Strategy) -> dict[str, Any]:
    return {
        "name": strategy.name,
        "level": str(strategy.level),
        "sites": list(strategy.site_kinds),
        "parameters": [{"name": p.name, "meaning": p.meaning, "choices": list(p.choices)} for p in strategy.parameters],
        "targets": list(strategy.targets),
        "doc": catalogue.documentation(strategy),
    }


@verb("legal")
@click.argument("workload")
@target_option
@click.option("--why", help="Say why this action is refused, or what it would do.")
def legal_actions(workload: str, target: str, why: str | None) -> Answer:
    """List the legal actions of WORKLOAD in canonical order."""
    program = read_workload(workload, target).program
    if why is None:
        actions = [str(action) for action in strategies.legal(program, target)]
        return Answer("\n".join(actions), {"actions": actions})
    (action,) = read_actions([why])
    refusal = strategies.refusal(program, action, target)
    if refusal is not None:
        return Answer(str(refusal), {"legal": False, "code": refusal.code, "sentence": refusal.sentence}, Exit.NEGATIVE)
    reason = strategies.rationale(program, action)
    return Answer(reason, {"legal": True, "rationale": reason})


@verb("apply")
@click.argument("workload")
@click.argument("actions", nargs=-1, required=True)
@target_option
def apply_actions(workload: str, actions: tuple[str, ...], target: str) -> Answer:
    """Apply ACTIONS in turn to WORKLOAD and print the program."""
    program, exactness = read_workload(workload, target).program, Exactness.EXACT
    wanted = read_actions(actions)
    for position, action in enumerate(wanted, 1):
        refusal = strategies.refusal(program, action, target, approximate=True)
        if refusal is not None:
            sentence = f"action {position}, {action}: {refusal}"
            data = {"program": show(program), "position": position, "refused": sentence, "code": refusal.code}
            return Answer(show(program), data, Exit.NEGATIVE, notes=[sentence])
        outcome = strategies.apply(program, action)
        program, exactness = outcome.program, max(exactness, outcome.exactness)
    data = {"program": show(program), "key": key(program), "exactness": exactness.name.lower()}
    return Answer(show(program), data)


@verb("verify")
@click.argument("candidate")
@click.argument("workload", required=False)
@target_option
@threads_option
@store_option
@click.option("--measure", is_flag=True, help="Build, verify and time what a trace file recorded again.")
def verify_candidate(
    candidate: str, workload: str | None, target: str, threads: int | None, store: Path | None, measure: bool
) -> Answer:
    """Check CANDIDATE: a program for itself, a program against WORKLOAD, or a trace file (.json).

    A program for itself is checked statically. Against WORKLOAD it is also built, run on several input sets,
    compared with the float64 reference, and timed.
    """
    if candidate.endswith(".json"):
        return _verify_trace(read_trace(candidate), thread_count(threads), measure)
    if workload is None:
        program = read_workload(candidate, target).program
        return Answer("well-formed", {"status": "well-formed", "key": key(program)})
    from envs.leir_env.problem import LeirProblem

    kept, source = open_store(store, Store), read_workload(workload)
    with contextlib.closing(LeirProblem(source, target, kept, thread_count(threads))) as problem:
        state = problem.read(show(read_workload(candidate, target).program))
        if isinstance(state, str):
            return Answer(state, {"status": "rejected", "detail": state}, Exit.NEGATIVE)
        (evaluation,) = problem.evaluate([state])
    verified = evaluation.status.verified
    return Answer(
        describe(evaluation),
        {"status": str(evaluation.status), "evaluation": evaluation.to_json()},
        Exit.OK if verified else Exit.NEGATIVE,
    )


def read_trace(path: str) -> traces.Trace:
    """The trace in a file."""
    text = read_text(path)
    with reading(path):
        return traces.parse(text)


def _verify_trace(trace: traces.Trace, threads: int, measure: bool) -> Answer:
    # Without a store, nothing recorded is believed.
    with contextlib.closing(_problem_of(trace, threads)) as problem:
        findings = [str(finding) for finding in traces.verify(trace, problem, measure)]
    again = f", {len(trace.evaluations)} evaluations made again" if measure else ""
    text = "\n".join(findings) or f"the trace holds: {len(trace.actions)} actions{again}"
    return Answer(text, {"holds": not findings, "findings": findings}, Exit.NEGATIVE if findings else Exit.OK)


def _problem_of(trace: traces.Trace, threads: int = 1) -> LeirProblem:
    from envs.leir_env.problem import LeirProblem

    return LeirProblem(read_workload(trace.task), trace.target, None, threads, approximate=True)


@verb("replay")
@click.argument("trace")
def replay_trace(trace: str) -> Answer:
    """Apply the actions of the file TRACE step by step; print each program and what was measured."""
    parsed = read_trace(trace)
    problem = _problem_of(parsed)
    with reading(trace):
        states = traces.replay(parsed, problem)
    known = {evaluation.key: evaluation for evaluation in parsed.evaluations}
    steps, lines = [], []
    for title, state in zip(["root", *map(str, parsed.actions)], states, strict=True):
        evaluation = known.get(problem.key(state))
        lines += [f"# {title}", *([f"# {describe(evaluation)}"] if evaluation else []), problem.show(state)]
        steps.append(_step(title, state, evaluation))
    return Answer("\n".join(lines), {"task": parsed.task, "steps": steps})


def _step(title: str, state: LeirState, evaluation: Evaluation | None) -> dict[str, Any]:
    return {
        "action": title,
        "program": show(state.program),
        "exactness": state.exactness.name.lower(),
        "speedup": evaluation.speedup if evaluation else None,
        "status": str(evaluation.status) if evaluation else None,
    }


def describe(evaluation: Evaluation) -> str:
    """The verdict on one line."""
    timing = evaluation.timing
    if timing is None:
        return f"{evaluation.status}: {evaluation.detail}"
    root = f", {evaluation.speedup_over_root:.3g}x the root" if evaluation.speedup_over_root else ""
    interval = f"{timing.ratio:.3g}x [{timing.low:.3g}, {timing.high:.3g}]"
    return f"{evaluation.status}: {interval} the {timing.baseline_name}{root}"
