"""The evolution of optimisers: propose, race, record; again and again.

Steady state, (mu + 1): each program is bred from the survivors, the mu best so far, and takes the place of the worst
of them if it is better. What comes next follows from the records and the seed alone, so that a study that was killed
goes on as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from training.design.archive import Archive, Record
from training.design.designers import OPERATORS, Designer, Draft
from training.design.race import RUNGS, Result, race
from training.design.sandbox import Sandbox

WEIGHTS = {"new": 1, "refine": 4, "simplify": 1, "cross": 3}
"""How often each operator is drawn, once there are survivors."""

ATTEMPTS = 20
"""How often a designer is asked again for a program that has been tried."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a study goes."""

    programs: int = 100
    """How many are tried altogether, those that fail included."""
    survivors: int = 8
    founders: int = 16
    """How many are new before breeding begins."""
    rungs: tuple[int, ...] = RUNGS
    seed: int = 0


def survivors(records: Sequence[Record], count: int) -> list[Record]:
    """The best programs, best first: those that came further in the race before others."""
    alive = [record for record in records if not record.result.failure]
    return sorted(alive, key=lambda record: (-len(record.result.rungs), -record.fitness))[:count]


def run(
    plan: Plan,
    designer: Designer,
    sandbox: Sandbox,
    archive: Archive,
    report: Callable[[int, Record], None] = lambda done, record: None,
) -> list[Record]:
    """Run a study to its end; returns the survivors. `report` hears of every record."""
    while len(archive.records) < plan.programs:
        record = step(plan, designer, sandbox, archive.records)
        archive.add(record)
        report(len(archive.records), record)
    return survivors(archive.records, plan.survivors)


def step(plan: Plan, designer: Designer, sandbox: Sandbox, records: Sequence[Record]) -> Record:
    """The next program of a study, raced."""
    number = len(records)
    rng = Random(f"{plan.seed}/{number}")
    best = survivors(records, plan.survivors)
    known = {record.source for record in records}
    for _ in range(ATTEMPTS):
        operator, parents = _breed(plan, number, best, rng)
        draft = designer.propose(operator, parents, best, rng)
        if draft.source not in known:
            break
    else:
        return _record(number, operator, parents, draft, Result(failure="repeated: this program was tried before"))
    rivals = [one.result.rungs for one in best] if len(best) == plan.survivors else []
    result = race(sandbox, draft.source, rivals, plan.seed, plan.rungs)
    return _record(number, operator, parents, draft, result)


def _breed(plan: Plan, number: int, best: Sequence[Record], rng: Random) -> tuple[str, list[Record]]:
    """The operator and its parents; better survivors are drawn more often."""
    possible = {name: weight for name, weight in WEIGHTS.items() if len(best) >= OPERATORS[name]}
    operator = "new" if number < plan.founders else rng.choices(list(possible), list(possible.values()))[0]
    ranked = list(best)
    parents = [ranked.pop(int(len(ranked) * rng.random() ** 2)) for _ in range(OPERATORS[operator])]
    return operator, parents


def _record(number: int, operator: str, parents: Sequence[Record], draft: Draft, result: Result) -> Record:
    ancestors = tuple(parent.number for parent in parents)
    return Record(number, operator, ancestors, draft.idea, draft.source, draft.design, result)


def ancestry(records: Sequence[Record], number: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Where a program comes from, as data: the settings of the study, the programs tried, and the lineage."""
    line = []
    for one in lineage(records, number):
        last = one.result.rungs[-1]
        line.append(
            {
                "number": one.number,
                "operator": one.operator,
                "parents": list(one.parents),
                "idea": one.idea,
                "design": one.design,
                "repeats": last.repeats,
                "score": round(last.mean, 4),
                "interval": [round(last.low, 4), round(last.high, 4)],
            }
        )
    return {"settings": dict(settings), "programs": len(records), "lineage": line}


def lineage(records: Sequence[Record], number: int) -> list[Record]:
    """A program and all its ancestors, oldest first."""
    wanted, found = [number], set()
    while wanted:
        one = wanted.pop()
        if one not in found:
            found.add(one)
            wanted += records[one].parents
    return [records[one] for one in sorted(found)]
