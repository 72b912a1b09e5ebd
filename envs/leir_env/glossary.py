"""LEIR explained to a reader who has never seen it, such as a language model."""

from __future__ import annotations

import functools

from envs.leir_env import catalogue
from envs.leir_env.cost import CORE
from envs.leir_env.strategies import REGISTRY

LANGUAGE = """\
Programs are in LEIR: index extents (i,j:512), tensors (inputs | parameters -> outputs; temporaries), then loops and \
equations. A loop is L serial, P parallel, V vectorised or U unrolled, and stands before what it repeats: L_i V_j; \
L_i,j is a loop over j in one over i. [ ... ] is a block; a tensor declared in a block is private to each run of it, \
and .l keeps it in local memory. Equations assign (=) or accumulate (+= *= max= min=); an accumulator starts from its \
operator's identity. 32io+ii is 32*io + ii. A second loop over i in the text is called i.2."""
"""What a program's text means."""


@functools.cache
def glossary(target: str, approximate: bool = False) -> str:
    """The language, and how each strategy for the target is called and what it does."""
    known = (s for s in REGISTRY.values() if target in s.targets and (approximate or not s.approximate))
    lines = (f"{catalogue.call(strategy)}: {catalogue.meaning(strategy)}" for strategy in known)
    return f"{LANGUAGE}\n\nStrategies, as name(sites; parameters):\n" + "\n".join(lines)


def machine(target: str, threads: int) -> str:
    """The machine that the cost model has in mind, in a sentence."""
    if target != "llvm":
        return f"Target: {target}."
    many = f"{threads} threads" if threads > 1 else "1 thread: parallel loops gain nothing"
    lanes = CORE.vector_bytes // 4
    return f"Target: a CPU with {CORE.registers} vector registers of {lanes} f32 each, and {many}."
