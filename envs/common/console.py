"""What the commands share: the `--json` option, answers, exit codes, and the table of verbs.

A verb is a function that returns an `Answer`; it can be called from Python as well. Results go to standard
output (`--json`: one object), everything else to standard error.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import click


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    NEGATIVE = 1
    """The verdict is negative: refused, wrong, not verified."""
    USAGE = 2
    """The input or the options are wrong."""
    MISSING = 3
    """A dependency or a device is missing."""
    INTERRUPTED = 130
    """Ctrl-C, and nothing was found."""


class BadInput(click.ClickException):
    """What the user gave is not what it should be; the message is one line that says where."""

    exit_code = int(Exit.USAGE)


class Missing(click.ClickException):
    """A dependency or a device is missing; the message says how to get it."""

    exit_code = int(Exit.MISSING)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb, for people and for programs."""

    text: str
    data: dict[str, Any]
    code: Exit = Exit.OK
    notes: Sequence[str] = field(default=())
    """Remarks for standard error."""


class Verb(click.Command):
    """A command that prints the `Answer` of its function."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."))

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function, print its answer, exit with its code."""
        as_json = ctx.params.pop("as_json")
        try:
            answer = super().invoke(ctx)
        except click.ClickException as error:
            if as_json:
                click.echo(json.dumps({"error": error.format_message()}))
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)
        for note in answer.notes:
            click.echo(note, err=True)
        click.echo(json.dumps(answer.data) if as_json else answer.text.rstrip("\n"))
        ctx.exit(answer.code)


def verb(name: str) -> Callable[[Callable[..., Answer]], Verb]:
    """Make a function into the command `name`; its docstring is the help."""
    return click.command(name, cls=Verb, context_settings={"help_option_names": ["-h", "--help"]})


class Verbs(click.Group):
    """The verbs of a table name -> (module:command, help), each imported when it is called."""

    def __init__(self, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(context_settings={"help_option_names": ["-h", "--help"]}, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, command = self.table[cmd_name][0].partition(":")
        try:
            loaded: click.Command = getattr(importlib.import_module(module), command)
        except ModuleNotFoundError as error:
            raise Missing(_explain(module, error)) from error
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


def _explain(module: str, error: ModuleNotFoundError) -> str:
    package = module.partition(".")[0]
    if error.name and module.startswith(error.name):
        place = getattr(sys.modules.get(package), "__file__", None)
        return f"{module} is not there: package {package} comes from {place}; see leirgym doctor"
    return f"{module} needs the Python package {error.name}, which is not installed"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
