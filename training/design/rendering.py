"""Designs of the grammar as programs: source that reads as if somebody had written it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from training.design.grammar import Design, effective


def describe(design: Design) -> str:
    """One sentence about a design."""
    if design["base"] == "process":
        return _described(design)
    pool = [f"{design['neighbours']} neighbours ({design['kinds']})"]
    pool += [f"{design[gene]} {gene}" for gene in ("crosses", "leaps", "differences", "strangers") if design[gene]]
    base = {"walk": "a walk", "best": "steps from the best", "elite": f"steps from one of the best {design['elite']}"}
    screen = {"none": "at random", "nearest": f"by {design['k']}-NN", "additive": "by an additive model"}
    screened = screen.get(str(design["screen"]), f"by an additive model, then {design['k']}-NN")
    return f"{base[str(design['base'])]} over a pool of {', '.join(pool)}, chosen {screened}"


def render(design: Design, name: str = "Evolved") -> str:
    """The program of a design."""
    design = effective(design)
    imports = [f"from envs.autotune_env.optimizers.search import Search, Searcher, View{_extras(design)}"]
    if design["base"] == "process":
        imports.insert(0, "from envs.autotune_env.optimizers.process import Process")
        body = _process(design)
    else:
        body = [*_start(design), "while True:", *_indent(_step(design))]
    summary = describe(design)
    helpers = ["", *_leap()] if design["leaps"] else []
    lines = [
        '"""An optimiser composed from building blocks."""',
        "",
        "from __future__ import annotations",
        "",
        *imports,
        "",
        "",
        f"class {name}(Searcher):",
        *_indent(_docstring(f"{summary[0].upper()}{summary[1:]}.")),
        "",
        "    __slots__ = ()",
        "",
        "    def search(self, view: View) -> Search:",
        *_indent(_indent(body)),
        *_indent(helpers),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _described(design: Design) -> str:
    """One sentence about a design with a Gaussian process."""
    draw = f"{design['start']} rows {'far apart' if design['draw'] == 'spread' else 'at random'}"
    choice = "expected improvement" + (" for its seconds" if design["thrift"] else "")
    weights = "weights fitted" if design["weights"] == "fitted" else "equal weights"
    detour = f", and neighbours of the best now and then ({design['detour']})" if design["detour"] else ""
    return f"after {draw}, the greatest {choice} by a Gaussian process with {weights}{detour}"


def _process(design: Design) -> list[str]:
    """The body of a search that a Gaussian process guides."""
    kernel = ", ".join(f"{gene}={design[gene]}" for gene in ("reach", "jump", "power", "noise"))
    rest = f"fitted={design['weights'] == 'fitted'}, room={design['room']}, candidates={design['candidates']}"
    options = ", ".join(f"{gene}={design[gene]}" for gene in ("caution", "thrift") if design[gene])
    first = "process.spread" if design["draw"] == "spread" else "view.samples"
    chosen = f"yield process.choose({options})"
    loop = [chosen]
    if design["detour"]:
        detour = ["    yield view.neighbour(view.best)", "else:", f"    {chosen}"]
        loop = [f"if view.elite(1) and view.rng.random() < {design['detour']}:", *detour]
    return [
        f"process = Process(view, {kernel}, {rest})",
        f"for row in {first}({design['start']}):",
        "    yield row",
        "while True:",
        *_indent(loop),
    ]


def _docstring(text: str) -> list[str]:
    """A docstring of a class, in lines of at most 100 characters."""
    if len(text) <= 100:
        return [f'"""{text}"""']
    lines = textwrap.wrap(text, 100)
    return [f'"""{lines[0]}', *lines[1:], '"""']


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
