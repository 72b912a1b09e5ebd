"""An episode drawn: the program, what the last move changed, the verdict. As text, in colour, as HTML."""

from __future__ import annotations

import difflib
import html
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envs.common.env import REFUSED_STATUS, Episode
from envs.common.reward import value
from envs.leir_env.problem import LeirState


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the program: mark `+` if it is new, `-` if it is gone, else a space."""

    mark: str
    words: tuple[tuple[str, bool], ...]
    """Its text in pieces, and for each whether the line that it replaces, or is replaced by, lacks it."""

    @property
    def text(self) -> str:
        return "".join(word for word, _ in self.words)


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to see, before it is laid out."""

    title: str
    move: str
    """The last choice as text; empty at the start."""
    status: str
    good: bool
    figures: str
    detail: str
    lines: tuple[Line, ...]


def picture(episode: Episode[LeirState], max_steps: int) -> Picture:
    """Collect what to draw of an episode."""
    problem, move, verdict = episode.problem, episode.last, episode.verdict
    refused = move is not None and move.state is None
    after = problem.show(episode.state)
    before = after if refused or episode.parent is None else problem.show(episode.parent)
    return Picture(
        f"{problem.task}, step {episode.steps} of {max_steps}",
        move.text if move else "",
        REFUSED_STATUS if refused else str(verdict.status),
        not refused and not verdict.failed,
        ", ".join(_figures(episode)),
        move.refusal if move is not None and refused else verdict.detail,
        tuple(difference(before, after)),
    )


def _figures(episode: Episode[LeirState]) -> Iterator[str]:
    verdict = episode.verdict
    timing = verdict.evaluation and verdict.evaluation.timing
    if verdict.log_speedup is not None:
        interval = f" [{timing.low:.3g}, {timing.high:.3g}]" if timing else ""
        yield f"{math.exp(verdict.log_speedup):.3g}x{interval} over the default schedule"
        yield f"{math.exp(value(verdict, episode.root)):.3g}x over the root"
    yield f"return {round(episode.collected, 3) + 0.0:+.3f}"  # never -0.000


def difference(before: str, after: str) -> Iterator[Line]:
    """The lines of `after`, marked where they are new, with those of `before` that are gone."""
    old, new = before.splitlines(), after.splitlines()
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (Line(" ", ((text, False),)) for text in new[c:d])
            continue
        for mark, mine, theirs in (("-", old[a:b], new[c:d]), ("+", new[c:d], old[a:b])):
            for position, text in enumerate(mine):
                yield Line(mark, _words(text, theirs[position] if position < len(theirs) else ""))


def _words(text: str, other: str) -> tuple[tuple[str, bool], ...]:
    """The pieces of `text`, each with whether `other` lacks it there."""
    mine, theirs = re.findall(r"\s+|\S+", text), re.findall(r"\s+|\S+", other)
    codes = difflib.SequenceMatcher(None, theirs, mine, autojunk=False).get_opcodes()
    return tuple(("".join(mine[c:d]), tag != "equal") for tag, _, _, c, d in codes if c < d)


def ansi(drawn: Picture) -> str:
    """Plain text, ending in a newline."""
    head = f"{drawn.title}: {drawn.move}" if drawn.move else drawn.title
    body = "\n".join(f"{line.mark} {line.text}" for line in drawn.lines)
    detail = f"  {drawn.detail}\n" if drawn.detail else ""
    return f"{head}\n{body}\n{drawn.status}: {drawn.figures}\n{detail}"


_STYLES = {("+", True): "bold green", ("+", False): "green", ("-", True): "red", ("-", False): "dim red"}


def human(drawn: Picture) -> None:
    """Write to the terminal, in colour where it has any."""
    from rich.console import Console
    from rich.text import Text

    text = Text()
    text.append(drawn.title, "bold")
    text.append(f"  {drawn.move}\n" if drawn.move else "\n", "cyan")
    for line in drawn.lines:
        text.append(f"{line.mark} ", _STYLES.get((line.mark, True), ""))
        for word, changed in line.words:
            text.append(word, _STYLES.get((line.mark, changed), ""))
        text.append("\n")
    text.append(drawn.status, "bold green" if drawn.good else "bold red")
    text.append(f"  {drawn.figures}\n")
    text.append(f"{drawn.detail}\n" if drawn.detail else "", "yellow")
    Console(highlight=False, soft_wrap=True).print(text)


_BOX_CSS = "font:14px sans-serif;max-width:70em;color:#1f2328;background:#fff;padding:.5em"
_CODE_CSS = "font:13px/1.45 monospace;padding:.5em;margin:.5em 0;border:1px solid #d0d7de;overflow:auto"
_LINE_CSS = {"+": "background:#e6ffec", "-": "background:#ffebe9;color:#6e7781", " ": ""}
_WORD_CSS = {"+": "background:#abf2bc", "-": "background:#ffc9c5"}


def as_html(drawn: Picture) -> str:
    """A self-contained fragment: no style sheet, no script."""
    colour = "#116329" if drawn.good else "#a40e26"
    move = f" <code>{html.escape(drawn.move)}</code>" if drawn.move else ""
    detail = f'<div style="color:#7d4e00">{html.escape(drawn.detail)}</div>' if drawn.detail else ""
    code = "".join(map(_html_line, drawn.lines))
    status = f'<b style="color:{colour}">{html.escape(drawn.status)}</b> {html.escape(drawn.figures)}'
    return (
        f'<div style="{_BOX_CSS}"><b>{html.escape(drawn.title)}</b>{move}'
        f'<pre style="{_CODE_CSS}">{code}</pre>{status}{detail}</div>'
    )


def _html_line(line: Line) -> str:
    words = (
        f'<span style="{_WORD_CSS[line.mark]}">{html.escape(word)}</span>' if changed else html.escape(word)
        for word, changed in line.words
    )
    return f'<div style="{_LINE_CSS[line.mark]}">{line.mark} {"".join(words)}</div>'


DRAW: dict[str, Callable[[Picture], str | None]] = {"ansi": ansi, "human": human, "html": as_html}
"""Each render mode."""
