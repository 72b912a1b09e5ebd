"""What `optimize` found, for people and for programs. Pure: records in, text and JSON out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.base import SearchResult
from envs.common.console import columns
from envs.common.evaluation import Evaluation, Timing
from envs.common.trace import Trace

STEP = ("action", "speedup", "gain", "status")
"""Columns of the steps of a trace."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """A ratio of median times with its 95 % interval."""

    over: str
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.3g}x [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True, slots=True)
class Report:
    """A finished search and what was measured about its result."""

    name: str
    """What was optimised, as the user calls it."""
    result: SearchResult
    trace: Trace
    """The best trace without idle actions, with the evaluations of its steps."""
    agent: str
    seed: int
    before: str
    after: str
    stored: int
    """Evaluations of the search that came from the store."""
    torch: Timing | str
    """The result against the PyTorch module, or why there is no such figure."""

    def speedups(self) -> tuple[Speedup, ...]:
        """Of the result, over root, default schedule and torch, as far as they are known."""
        found = []
        best, root = _timing(self.result.evaluation), _timing(self.result.root)
        if best and root:
            found.append(Speedup("root", best.ratio / root.ratio, best.low / root.high, best.high / root.low))
        if best:
            found.append(Speedup(best.baseline_name.replace("_", " "), best.ratio, best.low, best.high))
        if isinstance(self.torch, Timing):
            name = self.torch.baseline_name
            found.append(Speedup(name, self.torch.ratio, self.torch.low, self.torch.high))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """One object; what isn't known is null."""
        result = self.result
        return {
            "task": result.task,
            "agent": self.agent,
            "seed": self.seed,
            "ended": str(result.ended),
            "evaluations": result.counts.evaluations,
            "from_store": self.stored,
            "expansions": result.counts.expansions,
            "generated": result.counts.generated,
            "seconds": result.counts.seconds,
            "before": self.before,
            "after": self.after,
            "actions": [str(action) for action in self.trace.actions],
            "steps": [dict(zip(STEP, row, strict=True)) for row in self._steps()],
            "speedups": {s.over: {"ratio": s.ratio, "low": s.low, "high": s.high} for s in self.speedups()},
            "torch": None if isinstance(self.torch, Timing) else self.torch,
            "curve": list(result.curve),
            "evaluation": result.evaluation.to_json() if result.evaluation else None,
            "root": result.root.to_json() if result.root else None,
        }

    def text(self) -> str:
        """The report for people."""
        parts = [self._head(), "before\n" + _indent(self.before)]
        if self.result.evaluation is None:
            return "\n\n".join([*parts, "nothing verified: " + _verdict(self.result.root)])
        if self.trace.actions:
            parts += ["after\n" + _indent(self.after), self._table()]
        else:
            parts.append("nothing faster than the program itself was found")
        return "\n\n".join([*parts, self._figures(), self._evidence(self.result.evaluation)])

    def _head(self) -> str:
        counts = self.result.counts
        stored = f", {self.stored} of them from the store" if self.stored else ""
        return (
            f"{self.name}: {self.agent}, seed {self.seed}, "
            f"{counts.evaluations} evaluations{stored}, {counts.expansions} expansions, "
            f"{counts.seconds:.1f} s; ended: {self.result.ended}"
        )

    def _steps(self) -> list[tuple[str, float | None, float | None, str]]:
        """Action, speedup over the baseline, gain over the last known step, and status, the root first."""
        known = {evaluation.key: evaluation for evaluation in self.trace.evaluations}
        rows: list[tuple[str, float | None, float | None, str]] = []
        last: float | None = None
        names = ["(root)", *map(str, self.trace.actions)]
        for name, key in zip(names, (self.trace.root, *self.trace.keys), strict=True):
            evaluation = known.get(key)
            speedup = evaluation.speedup if evaluation else None
            gain = speedup / last if speedup and last else None
            rows.append((name, speedup, gain, str(evaluation.status) if evaluation else "not measured"))
            last = speedup or last
        return rows

    def _table(self) -> str:
        rows = [("step", "speedup", "gain", "")]
        for name, speedup, gain, status in self._steps():
            shown = "" if status == "ok" else status
            rows.append((name, f"{speedup:.3g}x" if speedup else "", f"{gain:.3g}x" if gain else "", shown))
        return columns(rows)

    def _figures(self) -> str:
        rows = [("verified speedup", "ratio of medians [95 % interval]")]
        rows += [(f"over {speedup.over}", str(speedup)) for speedup in self.speedups()]
        if isinstance(self.torch, str):
            rows.append(("over torch", self.torch))
        return columns(rows)

    def _evidence(self, evaluation: Evaluation) -> str:
        sets = sorted({check.name.partition("/")[0] for check in evaluation.checks})
        worst = max(evaluation.checks, key=lambda check: check.max_error)
        bitwise = all(check.bitwise for check in evaluation.checks)
        assert evaluation.timing is not None
        rows = [
            ("verified on", f"{len(sets)} input sets: {', '.join(sets)}"),
            ("against", "the float64 reference of the program before"),
            ("largest error", f"{worst.max_error:.2g} of its bound, in {worst.name}"),
            ("bitwise equal", "yes" if bitwise else "no"),
            ("timed", f"{len(evaluation.timing.candidate)} pairs, interleaved with the baseline"),
            *([("audited", "in a fresh process with new seeds")] if evaluation.audited else []),
            *sorted(evaluation.environment.items()),
        ]
        return columns(rows)


def _timing(evaluation: Evaluation | None) -> Timing | None:
    return evaluation.timing if evaluation else None


def _verdict(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "the program itself was not evaluated"
    return f"the program itself is {evaluation.status}, {evaluation.detail}"


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.rstrip("\n").splitlines())
