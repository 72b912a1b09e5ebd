"""Optimisers composed from building blocks: a designer that needs no network.

A design is one choice for each gene of `GENES`. `rendering` makes a program of it; what a gene switches off leaves no
trace in the text, so that simple designs are short programs. Designs have a `base`: a walk, steps from the best or from
an elite, each over a pool that is collected anew; or a Gaussian process, which judges a standing set of candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

Choice = int | float | str
Design = dict[str, Choice]

GENES: Mapping[str, tuple[Choice, ...]] = MappingProxyType(
    {
        "start": (1, 2, 3, 4, 6, 8, 16, 32),
        "base": ("walk", "best", "elite", "process"),
        "kinds": ("hamming", "step", "adjacent", "hamming adjacent", "hamming step", "hamming step adjacent"),
        "turns": ("even", "learned", "late"),
        "neighbours": (1, 2, 4, 8, 16, 32, 64),
        "elite": (2, 3, 5, 8, 12, 20),
        "crosses": (0, 1, 2, 4, 8),
        "leaps": (0, 1, 2, 4, 8, 16),
        "differences": (0, 1, 2, 4, 8),
        "strangers": (0, 1, 2, 4, 8, 32),
        "screen": ("none", "nearest", "additive", "both"),
        "k": (1, 3, 5, 8, 13),
        "stray": (0.0, 0.05, 0.1, 0.2, 0.4),
        "accept": ("better", "anneal", "always"),
        "hot": (0.01, 0.03, 0.1, 0.3, 1.0),
        "patience": (0, 10, 25, 50, 100),
        "restart": ("stranger", "elite", "kick"),
        "draw": ("random", "spread"),
        "reach": (0.25, 0.5, 1.0, 2.0, 4.0),
        "jump": (0.02, 0.05, 0.1, 0.25, 0.5, 1.0),
        "power": (1.0, 1.5, 2.0),
        "noise": (0.0001, 0.001, 0.01, 0.1),
        "weights": ("equal", "fitted"),
        "room": (80, 120, 200),
        "candidates": (300, 600, 1000),
        "caution": (0.0, 0.05, 0.1, 0.2, 0.4),
        "thrift": (0.0, 0.25, 0.5, 1.0),
        "detour": (0.0, 0.05, 0.1, 0.2, 0.4),
    }
)
"""Every gene with its choices; numbers in order."""

SIMPLEST: Design = {
    "start": 1,
    "base": "walk",
    "kinds": "hamming",
    "turns": "even",
    "crosses": 0,
    "leaps": 0,
    "differences": 0,
    "strangers": 0,
    "screen": "none",
    "stray": 0.0,
    "accept": "better",
    "patience": 0,
    "draw": "random",
    "weights": "equal",
    "caution": 0.0,
    "thrift": 0.0,
    "detour": 0.0,
}
"""What simplification falls back to, gene by gene."""


SEEDS: tuple[Design, ...] = (
    SIMPLEST | {"neighbours": 8, "accept": "anneal", "hot": 0.1, "patience": 50, "restart": "stranger"},
    SIMPLEST
    | {"base": "process", "start": 3, "draw": "spread", "weights": "fitted", "room": 120, "candidates": 600}
    | {"reach": 1.0, "jump": 0.1, "power": 2.0, "noise": 0.001},
)
"""Textbook designs that half of the new ones begin with: a walk that anneals, Bayesian optimisation."""

STEPS = 3
"""Refinements between a seed and a new design."""

POOLED = (
    "kinds",
    "turns",
    "neighbours",
    "elite",
    "crosses",
    "leaps",
    "differences",
    "strangers",
    "screen",
    "k",
    "stray",
)
"""Genes of the pool."""

WALKED = ("accept", "hot", "patience", "restart")
"""Genes of a walk."""

JUDGED = ("draw", "reach", "jump", "power", "noise", "weights", "room", "candidates", "caution", "thrift", "detour")
"""Genes of a Gaussian process."""


def fresh(rng: Random) -> Design:
    """A design at random, or a seed after some refinements."""
    design = {gene: rng.choice(choices) for gene, choices in GENES.items()}
    if rng.random() < 0.5:
        design |= rng.choice(SEEDS)
        for _ in range(STEPS):
            design = refine(design, rng)
    return design


def refine(design: Design, rng: Random) -> Design:
    """One or two genes that matter changed; a number to the next one in either direction.

    Genes that begin to matter by that are drawn.
    """
    changed = dict(design)
    before = idle(design)
    active = [gene for gene in GENES if gene not in before]
    for gene in rng.sample(active, min(len(active), rng.choice((1, 1, 2)))):
        choices = GENES[gene]
        place = choices.index(changed[gene])
        if isinstance(changed[gene], str):
            changed[gene] = rng.choice([choice for choice in choices if choice != changed[gene]])
        else:
            changed[gene] = choices[max(place - 1, 0) if rng.random() < 0.5 else min(place + 1, len(choices) - 1)]
    return changed | {gene: rng.choice(GENES[gene]) for gene in GENES if gene in before - idle(changed)}


def simplify(design: Design, rng: Random) -> Design:
    """One gene that matters switched off, if any is on."""
    on = [gene for gene, off in SIMPLEST.items() if design[gene] != off and gene not in idle(design)]
    return {**design, **{gene: SIMPLEST[gene] for gene in ([rng.choice(on)] if on else [])}}


def cross(first: Design, second: Design, rng: Random) -> Design:
    """Each gene from either, of those in which it matters if it does in any."""
    idles = idle(first), idle(second)
    crossed: Design = {}
    for gene in GENES:
        parents = [one for one, out in zip((first, second), idles, strict=True) if gene not in out]
        crossed[gene] = rng.choice(parents or (first, second))[gene]
    return crossed


def effective(design: Design) -> Design:
    """The design with every gene that has no effect at its first choice, so that equal programs have equal designs."""
    out = idle(design)
    return {gene: choices[0] if gene in out else design[gene] for gene, choices in GENES.items()}


def idle(design: Design) -> set[str]:
    """The genes that have no effect."""
    if design["base"] == "process":
        return {*POOLED, *WALKED, *(("draw",) if design["start"] == 1 else ())}
    out = set(JUDGED)
    if " " not in str(design["kinds"]):
        out.add("turns")
    if design["screen"] not in ("nearest", "both"):
        out.add("k")
    if design["screen"] == "none":
        out.add("stray")
    if design["accept"] != "anneal":
        out.add("hot")
    if design["patience"] == 0:
        out.add("restart")
    if design["base"] != "walk":
        out |= set(WALKED)
    if not any(design[gene] for gene in ("crosses", "leaps", "differences")) and design["base"] != "elite":
        out |= set() if design["restart"] == "elite" and "restart" not in out else {"elite"}
    return out
