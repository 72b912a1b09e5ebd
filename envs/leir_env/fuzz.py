"""Random programs and mangled texts against parser, verify, lowering and the interpreter.

Every text must parse, or fail with a `ParseError`; every program that `verify` accepts must build, and compute
what the interpreter computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from envs.common.actions import STOP
from envs.common.workers import Pool, Returned
from envs.leir_env import strategies
from envs.leir_env.generate import random_inputs, random_program
from envs.leir_env.interp import Array, run
from envs.leir_env.ir import DType, Program
from envs.leir_env.parser import ParseError, parse
from envs.leir_env.printer import show
from envs.leir_env.verify import verify

SECONDS = 30.0
MEMORY = 2 * 2**30
_BATCH = 16
_TOLERANCE = 2e-3
_CLOSE = {"f2": 64 * 2**-10}
"""Difference allowed between kernel and interpreter, by dtype: some processors contract accumulations of f16."""

_TOKENS = (
    *"LPUVBijkACDEF[][]():,+-*/%<>=|; 0123456789\n",
    "max=",
    "exp(",
    "if ",
    "inf",
    "select(",
    "f32",
    ".l",
    "->",
    "B^tx_i ",
)


def random_candidate(rng: np.random.Generator) -> Program:
    """A generated program after up to five random legal actions."""
    program = random_program(rng)
    for _ in range(int(rng.integers(0, 6))):
        actions = [action for action in strategies.legal(program) if action != STOP]
        if not actions:
            break
        names = sorted({action.name for action in actions})
        name = names[int(rng.integers(len(names)))]
        chosen = [action for action in actions if action.name == name]
        program = strategies.apply(program, chosen[int(rng.integers(len(chosen)))]).program
    return program


def mangle(text: str, rng: np.random.Generator) -> str:
    """A few random insertions, deletions, replacements, swapped lines."""
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(text) + 1))
        token = _TOKENS[int(rng.integers(len(_TOKENS)))]
        match int(rng.integers(4)):
            case 0:
                text = text[:at] + token + text[at:]
            case 1:
                text = text[:at] + text[at + int(rng.integers(1, 4)) :]
            case 2:
                text = text[:at] + token + text[at + 1 :]
            case _:
                lines = text.split("\n")
                a, b = rng.integers(len(lines), size=2)
                lines[a], lines[b] = lines[b], lines[a]
                text = "\n".join(lines)
    return text


def fuzz(
    seed: int, count: int, failed: Callable[[str], None], report: Callable[[int, str], None] = lambda done, line: None
) -> dict[str, int]:
    """Try `count` programs and `count` mangled texts; return how many came to each end.

    Whatever ends under `crash` or `differs` is a bug; `failed` is told each.
    """
    ends: Counter[str] = Counter(dict.fromkeys(("accepted", "rejected", "malformed", "agrees", "differs", "crash"), 0))
    pool = Pool(prepare="envs.leir_env.build")
    waiting: list[tuple[int, Program]] = []
    try:
        for number, text in _texts(seed, count):
            program = _accepted(text, ends, failed)
            if program is not None:
                waiting.append((number, program))
            if len(waiting) >= _BATCH:
                _compare(pool, waiting, ends, failed)
                waiting = []
            report(number // 2 + 1, ", ".join(f"{n} {end}" for end, n in ends.items()))
        _compare(pool, waiting, ends, failed)
    finally:
        pool.close()
    return dict(ends)


def _texts(seed: int, count: int) -> Iterator[tuple[int, str]]:
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        text = show(random_candidate(rng))
        yield 2 * number, text
        yield 2 * number + 1, mangle(text, rng)


def _accepted(text: str, ends: Counter[str], failed: Callable[[str], None]) -> Program | None:
    try:
        program = parse(text)
        problems = verify(program)
        assert parse(show(program)) == program
    except ParseError:
        ends["malformed"] += 1
        return None
    except Exception as error:  # noqa: BLE001 - what is looked for: any other exception is a bug
        ends["crash"] += 1
        failed(f"crash: {error!r} on\n{text}")
        return None
    ends["rejected" if problems else "accepted"] += 1
    return None if problems else program


def _compare(pool: Pool, batch: list[tuple[int, Program]], ends: Counter[str], failed: Callable[[str], None]) -> None:
    for number, program in batch:
        inputs = random_inputs(program, np.random.default_rng(number))
        outcome = pool.call(f"{__name__}:built", program, inputs, timeout=SECONDS, memory=MEMORY)
        if not isinstance(outcome, Returned):
            ends["crash"] += 1
            failed(f"{outcome} on\n{show(program)}")
        elif agree(program, inputs, outcome.value):
            ends["agrees"] += 1
        else:
            ends["differs"] += 1
            failed(f"the kernel differs from the interpreter on\n{show(program)}")


def built(program: Program, inputs: dict[str, Array]) -> dict[str, Array]:
    """Worker side: build and run."""
    from envs.leir_env.build import build

    return build(program).run(inputs)


def agree(program: Program, inputs: dict[str, Array], found: dict[str, Array]) -> bool:
    """Do the outputs equal the interpreter's wherever these are well conditioned and written?"""
    own, exact = run(program, inputs), run(program, inputs, DType.F64)
    return all(_equal(own[name], exact[name], found[name]) for name in own)


def _equal(own: Array, exact: Array, found: Array) -> bool:
    if own.dtype.kind != "f":
        return bool(np.array_equal(own, found))
    mine, theirs, double = (np.asarray(value, dtype=np.float64) for value in (own, found, exact))
    with np.errstate(all="ignore"):
        steady = np.isfinite(mine) & (np.abs(mine - double) <= _TOLERANCE * np.maximum(1, np.abs(double)))
        allowed = _CLOSE.get(own.dtype.str[1:], 4 * _TOLERANCE)
        close = np.abs(mine - theirs) <= allowed * np.maximum(1, np.abs(mine))
    return bool(np.all(close | ~steady))
