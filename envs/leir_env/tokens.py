"""How many tokens a program costs a language model: as LEIR, as TIR, and as CUDA.

Each form is the whole text that stands for the same root program. LEIR carries its declarations. TVM prints TIR in
two forms: the plain loops that we lower to, and the SBlocks that its schedules take, which is what Step-TP
(arXiv 2605.25954) counted. CUDA is what TVM generates for a plain mapping to a GPU (`gpu_schedule`), with its fixed
prelude of includes and typedefs, which Step-TP counted too, and without it.

The tokenizer is the BPE of the Qwen models, from the vocabulary that the PyPI package `dashscope` ships.
"""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from envs.common.console import Answer, BadInput, Missing, columns, verb
from envs.leir_env import workloads
from envs.leir_env.cli import reading
from envs.leir_env.ir import Program
from envs.leir_env.printer import show

Counter = Callable[[str], int]
"""Tokens of a text."""

INSTALL = "pip install 'leirgym[tokens]'"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How a text is cut up before pairs merge; it belongs to the vocabularies of Qwen to Qwen3. A digit is a token."""


def tokenizer(vocabulary: Path | None = None) -> Counter:
    """Return the counter of a vocabulary of the Qwen models, that of dashscope by default.

    A vocabulary is a file of lines, each a token in base64 and its rank. Raises `Missing` without the packages,
    `ValueError` for another kind of file.
    """
    try:
        import tiktoken
    except ImportError as error:
        raise Missing(f"counting tokens needs tiktoken: {INSTALL}") from error
    file = vocabulary or shipped_vocabulary()
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    encoding = tiktoken.Encoding(file.stem, pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    return lambda text: len(encoding.encode_ordinary(text))


def shipped_vocabulary() -> Path:
    """The vocabulary in the package dashscope, which is not imported. Raises `Missing`."""
    found = importlib.util.find_spec("dashscope")
    folders = (found.submodule_search_locations if found else None) or ()
    file = next((file for folder in folders for file in Path(folder).rglob("qwen.tiktoken")), None)
    if file is None:
        raise Missing(f"the vocabulary of Qwen is in the package dashscope, which is not installed: {INSTALL}")
    return file


@dataclass(frozen=True, slots=True)
class Form:
    """A text that stands for a program. Making it needs TVM, except for LEIR; raises `BuildError`."""

    title: str
    text: Callable[[Program], str]
    goal: float | None = None
    """The largest share of this form's tokens that LEIR should take, by sum."""


def _loops(program: Program) -> str:
    from envs.leir_env import lower

    function = lower.lower(program)
    # Around the loops stand the definitions of vectorised functions: LLVM code, which is not part of the program.
    body = getattr(function.body, "body", function.body) if _is_pragma(function.body) else function.body
    return str(function.with_body(body).script())


def _is_pragma(statement: Any) -> bool:
    return getattr(statement, "attr_key", "") == "pragma_import_llvm"


def _blocks(program: Program) -> str:
    from envs.leir_env import schedulable

    return str(schedulable.schedulable(program).script())


def _cuda(program: Program) -> str:
    from envs.leir_env import build, gpu_schedule

    return build.cuda_source(gpu_schedule.gpu_schedule(program))


def _kernels(program: Program) -> str:
    source = _cuda(program)
    return source[source.index('extern "C"') :]


FORMS: Mapping[str, Form] = {
    "leir": Form("LEIR", show),
    "tir": Form("TIR, loops", _loops, 0.22),
    "blocks": Form("TIR, SBlocks", _blocks, 0.22),
    "cuda": Form("CUDA", _cuda, 0.12),
    "kernels": Form("CUDA, no prelude", _kernels),
}
"""The forms that are counted."""


@dataclass(frozen=True, slots=True)
class Count:
    """The tokens of one workload by form; a form that it doesn't have is absent."""

    name: str
    suite: str
    tokens: Mapping[str, int]


def count(name: str, suite: str, program: Program, tokens: Counter) -> tuple[Count, tuple[str, ...]]:
    """Count every form of a program; a sentence for each that can't be made."""
    from envs.leir_env.lower_expr import BuildError

    found: dict[str, int] = {}
    missing = []
    for form, each in FORMS.items():
        try:
            found[form] = tokens(each.text(program))
        except BuildError as error:
            missing.append(f"{name} has no form {form}: {error}")
    return Count(name, suite, found), tuple(missing)


@dataclass(frozen=True, slots=True)
class Share:
    """LEIR beside another form, over the workloads that have it."""

    workloads: int
    leir: int
    """Tokens of LEIR, summed."""
    other: int
    mean: float
    """The mean of the ratios."""

    @property
    def ratio(self) -> float:
        """The ratio of the sums."""
        return self.leir / self.other


def share(counts: Iterable[Count], form: str) -> Share | None:
    """Compare LEIR with a form; None where no workload has it."""
    pairs = [(each.tokens["leir"], each.tokens[form]) for each in counts if form in each.tokens]
    if not pairs:
        return None
    leir, other = (sum(column) for column in zip(*pairs, strict=True))
    return Share(len(pairs), leir, other, sum(a / b for a, b in pairs) / len(pairs))


def by_suite(counts: Sequence[Count]) -> dict[str, list[Count]]:
    """The counts of each suite, and of all if there are several."""
    groups: dict[str, list[Count]] = {}
    for each in counts:
        groups.setdefault(each.suite, []).append(each)
    return groups | ({"all": list(counts)} if len(groups) > 1 else {})


@verb("tokens")
@click.argument("suite", required=False)
@click.option(
    "--vocabulary",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another vocabulary of the Qwen models (.tiktoken).  [default: that of dashscope]",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the tables to this Markdown file, and a plot beside it (with matplotlib).",
)
def count_tokens(suite: str | None, vocabulary: Path | None, report: Path | None) -> Answer:
    """Count the tokens of the shipped workloads, of one SUITE or of all, as LEIR, TIR and CUDA."""
    with reading("suite"):
        chosen = {each: workloads.names(each) for each in ([suite] if suite else workloads.suites())}
    try:
        tokens = tokenizer(vocabulary)
    except ValueError as error:
        raise BadInput(f"{vocabulary}: no vocabulary of tokens and ranks: {error}") from error
    if report is not None:
        with reading(str(report)):
            report.parent.mkdir(parents=True, exist_ok=True)
    counts: list[Count] = []
    notes: list[str] = []
    for each, names in chosen.items():
        for name in names:
            counted, missing = count(name, each, workloads.load(name).program, tokens)
            counts.append(counted)
            notes += missing
    if report is not None:
        with reading(str(report)):
            notes.append(_write(report, counts, suite))
    text = columns(_rows(counts)) + "\n\n" + columns(_shares(counts))
    return Answer(text, _as_json(counts), notes=notes)


def _rows(counts: Sequence[Count]) -> list[tuple[str, ...]]:
    rows = [("workload", *(form.title for form in FORMS.values()))]
    return rows + [(each.name, *(str(each.tokens.get(form, "-")) for form in FORMS)) for each in counts]


def _shares(counts: Sequence[Count]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("suite", "form", "workloads", "LEIR", "form's", "ratio of sums", "mean of ratios", "goal")
    ]
    for suite, group in by_suite(counts).items():
        for form, each in FORMS.items():
            found = share(group, form)
            if form != "leir" and found is not None:
                ratios = (f"{found.ratio:.3f}", f"{found.mean:.3f}", f"{each.goal:.2f}" if each.goal else "")
                rows.append((suite, each.title, *map(str, (found.workloads, found.leir, found.other)), *ratios))
    return rows


def _as_json(counts: Sequence[Count]) -> dict[str, Any]:
    return {
        "workloads": [{"name": each.name, "suite": each.suite, **each.tokens} for each in counts],
        "ratios": {
            suite: {
                form: {"workloads": s.workloads, "leir": s.leir, "form": s.other, "of_sums": s.ratio, "mean": s.mean}
                for form in FORMS
                if form != "leir" and (s := share(group, form)) is not None
            }
            for suite, group in by_suite(counts).items()
        },
    }


def _write(report: Path, counts: Sequence[Count], suite: str | None) -> str:
    """Write the report; a sentence about what was written."""
    plot = report.with_suffix(".png")
    drawn = _draw(plot, counts)
    report.write_text(_markdown(counts, suite, plot.name if drawn else None), encoding="utf-8")
    return f"wrote {report}" + (f" and {plot}" if drawn else "; a plot needs matplotlib: pip install 'leirgym[plot]'")


def _markdown(counts: Sequence[Count], suite: str | None, plot: str | None) -> str:
    command = " ".join(["leirgym tokens", *([suite] if suite else []), "--report docs/tokens.md"])
    packages = ", ".join(f"{name} {version(name)}" for name in ("apache-tvm", "tiktoken"))
    parts = [
        f"# Tokens of a program\n\nPrinted by `{command}` ({packages}; BPE of the Qwen models, one token a digit).\n",
        (__doc__ or "").partition("\n\n")[2].strip() + "\n",
        "## LEIR as a share of other forms\n\n" + _table(_shares(counts)),
        *([f"![Tokens of LEIR against TIR and CUDA]({plot})\n"] if plot else []),
        "## Tokens by workload\n\n" + _table(_rows(counts)),
    ]
    return "\n".join(parts)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _draw(plot: Path, counts: Sequence[Count]) -> bool:
    """Draw LEIR against the other forms; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter
    except ImportError:
        return False
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    for form, each in FORMS.items():
        if form in ("tir", "blocks", "cuda"):
            having = [c.tokens for c in counts if form in c.tokens]
            label = f"{each.title}: LEIR is {s.ratio:.2f} by sum" if (s := share(counts, form)) else each.title
            axes.scatter([t[form] for t in having], [t["leir"] for t in having], s=14, label=label)
    for goal in sorted({each.goal for each in FORMS.values() if each.goal}):
        axes.axline((1000, 1000 * goal), (2000, 2000 * goal), color="grey", linewidth=0.8)
        axes.annotate(f"goal {goal}", (2000, 2000 * goal), fontsize=8, color="grey")
    axes.set(xscale="log", yscale="log", xlabel="tokens as TIR or CUDA", ylabel="tokens as LEIR")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=8)
    figure.savefig(plot, dpi=120, metadata={"Software": None})
    return True
