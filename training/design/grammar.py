"""Optimisers composed from building blocks, rendered as readable source: a designer that needs no network.

A design is one choice for each gene of `GENES`. What a gene switches off leaves no trace in the text, so that simple
designs are short programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

Choice = int | float | str
Design = dict[str, Choice]

GENES: Mapping[str, tuple[Choice, ...]] = MappingProxyType(
    {
        "start": (1, 4, 8, 16, 32),
        "base": ("walk", "best", "elite"),
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
}
"""What simplification falls back to, gene by gene."""


def fresh(rng: Random) -> Design:
    """A design at random."""
    return {gene: rng.choice(choices) for gene, choices in GENES.items()}


def refine(design: Design, rng: Random) -> Design:
    """One or two genes changed; a number to the next one in either direction."""
    changed = dict(design)
    for gene in rng.sample(list(GENES), rng.choice((1, 1, 2))):
        choices = GENES[gene]
        place = choices.index(changed[gene])
        if isinstance(changed[gene], str):
            changed[gene] = rng.choice([choice for choice in choices if choice != changed[gene]])
        else:
            changed[gene] = choices[max(place - 1, 0) if rng.random() < 0.5 else min(place + 1, len(choices) - 1)]
    return changed


def simplify(design: Design, rng: Random) -> Design:
    """One gene switched off, if any is on."""
    on = [gene for gene, off in SIMPLEST.items() if design[gene] != off]
    return {**design, **{gene: SIMPLEST[gene] for gene in ([rng.choice(on)] if on else [])}}


def cross(first: Design, second: Design, rng: Random) -> Design:
    """Each gene from either."""
    return {gene: (first if rng.random() < 0.5 else second)[gene] for gene in GENES}


def effective(design: Design) -> Design:
    """The design with every gene that has no effect at its first choice, so that equal programs have equal designs."""
    idle = set()
    if " " not in str(design["kinds"]):
        idle.add("turns")
    if design["screen"] not in ("nearest", "both"):
        idle.add("k")
    if design["screen"] == "none":
        idle.add("stray")
    if design["accept"] != "anneal":
        idle.add("hot")
    if design["patience"] == 0:
        idle.add("restart")
    if design["base"] != "walk":
        idle |= {"accept", "hot", "patience", "restart"}
    if not any(design[gene] for gene in ("crosses", "leaps", "differences")) and design["base"] != "elite":
        idle |= set() if design["restart"] == "elite" and "restart" not in idle else {"elite"}
    return {gene: choices[0] if gene in idle else design[gene] for gene, choices in GENES.items()}


def describe(design: Design) -> str:
    """One sentence about a design."""
    pool = [f"{design['neighbours']} neighbours ({design['kinds']})"]
    pool += [f"{design[gene]} {gene}" for gene in ("crosses", "leaps", "differences", "strangers") if design[gene]]
    base = {"walk": "a walk", "best": "steps from the best", "elite": f"steps from one of the best {design['elite']}"}
    screen = {"none": "at random", "nearest": f"by {design['k']}-NN", "additive": "by an additive model"}
    screened = screen.get(str(design["screen"]), f"by an additive model, then {design['k']}-NN")
    return f"{base[str(design['base'])]} over a pool of {', '.join(pool)}, chosen {screened}"


def render(design: Design, name: str = "Designed") -> str:
    """The program of a design."""
    design = effective(design)
    body = [*_start(design), "while True:", *_indent(_step(design))]
    summary = describe(design)
    helpers = ["", *_leap()] if design["leaps"] else []
    lines = [
        '"""An optimiser composed from building blocks."""',
        "",
        "from __future__ import annotations",
        "",
        "from envs.autotune_env.optimizers.search import Search, Searcher, View" + _extras(design),
        "",
        "",
        f"class {name}(Searcher):",
        f'    """{summary[0].upper()}{summary[1:]}."""',
        "",
        "    __slots__ = ()",
        "",
        "    def search(self, view: View) -> Search:",
        *_indent(_indent(body)),
        *_indent(helpers),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def _extras(design: Design) -> str:
    return ", accepts" if design["base"] == "walk" and design["accept"] == "anneal" else ""


def _kinds(design: Design) -> list[str]:
    return str(design["kinds"]).split()


def _learns(design: Design) -> bool:
    return len(_kinds(design)) > 1 and design["turns"] == "learned"


def _start(design: Design) -> list[str]:
    """The first samples, and what the loop keeps."""
    lines = [
        "rng = view.rng",
        f"for row in view.samples({design['start']}):",
        "    yield row",
        "while not view.elite(1):  # until something succeeds",
        "    yield view.fresh()",
    ]
    if design["base"] == "walk":
        lines += ["row = view.best", "loss = view.losses[row]"]
        lines += ["refused = 0"] if design["patience"] else []
    if len(_kinds(design)) > 1:
        lines.append(f"kinds = {tuple(_kinds(design))!r}".replace("'", '"'))
    if _learns(design):
        lines.append("weights = [1.0] * len(kinds)")
    return lines


def _step(design: Design) -> list[str]:
    """One round of the loop: a pool, a choice, an evaluation, and what follows from it."""
    return [*_base(design), *_pool(design), *_screen(design), "found = yield candidate", *_after(design)]


def _base(design: Design) -> list[str]:
    lines = []
    if any(design[gene] for gene in ("crosses", "leaps", "differences")) or design["base"] == "elite":
        lines.append(f"elite = view.elite({design['elite']})")
    match design["base"]:
        case "best":
            lines.append("row = view.best")
        case "elite":
            lines.append("row = elite[int(len(elite) * rng.random() ** 2)]")
    return lines


def _pool(design: Design) -> list[str]:
    lines = []
    kind = f'"{_kinds(design)[0]}"'
    if len(_kinds(design)) > 1:
        kind = "kinds[turn]"
        lines.append(
            {
                "even": "turn = rng.randrange(len(kinds))",
                "learned": "(turn,) = rng.choices(range(len(kinds)), weights)",
                "late": "turn = min(int(view.spent * len(kinds)), len(kinds) - 1)",
            }[str(design["turns"])]
        )
    lines += [
        f"near = [other for other in view.neighbours(row, {kind}).tolist() if other not in view.losses]",
        f"pool = rng.sample(near, min(len(near), {design['neighbours']}))",
    ]
    if design["crosses"]:
        lines.append(f"pool += [view.cross(rng.choice(elite), rng.choice(elite)) for _ in range({design['crosses']})]")
    if design["leaps"]:
        lines.append(f"pool += [self._leap(view, rng.choice(elite)) for _ in range({design['leaps']})]")
    if design["differences"]:
        lines += [
            f"for _ in range({design['differences']}):",
            "    start, plus, minus = (view.indices(rng.choice(elite)) for _ in range(3))",
            "    pool.append(view.repair([a + b - c for a, b, c in zip(start, plus, minus, strict=True)]))",
        ]
    if design["strangers"]:
        lines.append(f"pool += view.samples({design['strangers']})")
    lines.append("pool = [other for other in dict.fromkeys(pool) if other not in view.losses] or [view.fresh()]")
    return lines


def _screen(design: Design) -> list[str]:
    model = {
        "nearest": [f"scores = view.predict(pool, {design['k']})"],
        "additive": ["scores = view.effects(pool)"],
        "both": [
            "scores = view.effects(pool)",
            "pool = [other for _, other in sorted(zip(scores, pool, strict=True))[: 1 + len(pool) // 4]]",
            f"scores = view.predict(pool, {design['k']})",
        ],
    }
    if design["screen"] == "none":
        return ["candidate = rng.choice(pool)"]
    chosen = "candidate = min(zip(scores, pool, strict=True))[1]"
    lines = [*model[str(design["screen"])], chosen]
    if design["stray"]:
        lines = [f"if rng.random() < {design['stray']}:", "    candidate = rng.choice(pool)", "else:", *_indent(lines)]
    return lines


def _after(design: Design) -> list[str]:
    """Acceptance, what the neighbourhoods learn, and restarts."""
    lines = []
    if _learns(design):
        gain = "found <= loss" if design["base"] == "walk" else "view.best == candidate"
        lines += [
            f"weights[turn] *= 1.1 if {gain} else 0.95",
            "weights = [max(weight / max(weights), 0.05) for weight in weights]",
        ]
    if design["base"] != "walk":
        return lines
    rule = {
        "better": "found <= loss",
        "anneal": f"accepts(rng, found, loss, {design['hot']} * 0.001**view.spent)",
        "always": 'found < float("inf")',
    }[str(design["accept"])]
    lines += [f"if {rule}:", "    row, loss = candidate, found"]
    if design["patience"]:
        away = {
            "stranger": "row = view.fresh()",
            "elite": f"row = rng.choice(view.elite({design['elite']}))",
            "kick": "row = view.neighbour(view.neighbour(view.best))",
        }[str(design["restart"])]
        lines += [
            "    refused = 0",
            "else:",
            "    refused += 1",
            f"if refused >= {design['patience']}:",
            f"    {away}",
            "    refused = 0",
            "    loss = yield row",
        ]
    return lines


def _leap() -> list[str]:
    return [
        "def _leap(self, view: View, row: int) -> int:",
        '    """Two values changed."""',
        "    return view.neighbour(view.neighbour(row))",
    ]
