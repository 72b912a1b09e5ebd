"""Named rewritings of LEIR programs. Importing this package registers them all."""

from envs.leir_env.strategies import graph, kinds, loops, memory, placement
from envs.leir_env.strategies.base import (
    REGISTRY,
    Exactness,
    Level,
    Outcome,
    Parameter,
    Refusal,
    Strategy,
    apply,
    legal,
    rationale,
    refusal,
    register,
)

__all__ = [
    "REGISTRY",
    "Exactness",
    "Level",
    "Outcome",
    "Parameter",
    "Refusal",
    "Strategy",
    "apply",
    "graph",
    "kinds",
    "legal",
    "loops",
    "memory",
    "placement",
    "rationale",
    "refusal",
    "register",
]
