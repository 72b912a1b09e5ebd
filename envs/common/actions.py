"""Actions and their one text form: `loop_tiling(i, j; 32, 64)`.

The same string stands in traces, logs, datasets, prompts and on the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_ACTION_CHARACTERS = 2_000

_NAME = r"[a-z][a-z0-9_]*"
_SITE = r"[A-Za-z][A-Za-z0-9]*(?:\.[0-9]+)?"
_ARGUMENT = r"[A-Za-z0-9_.+-]+"
_CALL = re.compile(
    rf"\s*({_NAME})\s*\(\s*((?:{_SITE}(?:\s*,\s*{_SITE})*)?)\s*(?:;\s*({_ARGUMENT}(?:\s*,\s*{_ARGUMENT})*)\s*)?\)\s*"
)


class ActionError(ValueError):
    """Text that is not one action."""


@dataclass(frozen=True, slots=True)
class Action:
    """A named strategy, the sites it applies to, and its parameters as they are spelled."""

    name: str
    sites: tuple[str, ...] = ()
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        args = f"; {', '.join(self.args)}" if self.args else ""
        return f"{self.name}({', '.join(self.sites)}{args})"


STOP = Action("stop")
"""Ends an episode; always legal."""


def parse_action(text: str) -> Action:
    """Parse exactly one action. Raises `ActionError`, which says what was expected."""
    if len(text) > MAX_ACTION_CHARACTERS:
        raise ActionError(f"an action has at most {MAX_ACTION_CHARACTERS} characters, got {len(text):,}")
    match = _CALL.fullmatch(text)
    if match is None:
        raise ActionError(f"expected strategy(sites; parameters), got {text.strip()[:80]!r}")
    name, sites, args = match.groups()
    return Action(name, _split(sites), _split(args))


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()
