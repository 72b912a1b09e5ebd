"""The flat one-line form that Step-TP (arXiv 2605.25954) published, read as a `Program`.

The text has no declarations: dtypes and shapes of inputs and outputs are given beside it; a temporary has its
dtype from the equation that first writes it and its shape from the subscripts written. What the form leaves
implicit becomes explicit:

* `X=X+e` accumulates from the identity of its operator. In the published form each such equation starts anew, so
  one that would lose an earlier value is refused. Updates that no assignment of LEIR expresses (`X=X*a+b`) come
  after an equation that writes their start.
* Where dtypes meet, the narrower is cast, integers to floats; a value is cast to the dtype of its target.
* Kinds are promises. Bound loops become serial unless they are asked for, and so does any loop whose kind `verify`
  does not accept. Tensors of scope `s` and `l` stand in the innermost block that they are private to, and are
  global where that can't hold them. Every such loss is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envs.leir_env.ir import Program
from envs.leir_env.parser import ParseError
from envs.leir_env.steptp.promises import promised, stored
from envs.leir_env.steptp.reader import Reader
from envs.leir_env.steptp.text import error, parse_program
from envs.leir_env.tree import walk
from envs.leir_env.verify import Problem, verify


@dataclass(frozen=True, slots=True)
class Reading:
    """A well-formed program, and a sentence for each thing that could not stay as it was written."""

    program: Program
    notes: tuple[str, ...]


def read(text: str, shapes: str, bound: bool = False) -> Reading:
    """Return the program that `text` means. Raises `ParseError`, which points at the place.

    `shapes` declares inputs, parameters and outputs, by role as in a header of LEIR (`A:f32[16,64] -> C:f32[16,64]`,
    with temporaries if need be) or in any order, where what the text writes is an output. With `bound`, loops bound
    to GPU axes stay bound, and the program is one for the target `cuda`.
    """
    parsed = parse_program(text)
    reader = Reader(text, shapes, parsed, bound)
    program, positions = reader.program(parsed)
    target = "cuda" if bound else "llvm"
    program, serial = promised(program, target)
    problems = verify(program, target)
    if problems:
        raise _located(program, positions, problems, text)
    program, lost = stored(program, reader.scopes, target)
    return Reading(program, (*serial, *lost))


def _located(program: Program, positions: Sequence[int], problems: Sequence[Problem], text: str) -> ParseError:
    """The first problem, at the statement that has it."""
    order = {node.path: number for number, node in enumerate(walk(program))}
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    first = problems[0]
    return error(first.sentence + more, text, positions[order[first.path]] if first.path else 0)


__all__ = ["Reading", "read"]
