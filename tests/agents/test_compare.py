"""Comparisons: what is counted is what happened, and the report stands alone."""

import json
import math
import re

import pytest

from agents.compare import Comparison, Run, Task, geomean, run
from agents.compare_report import overview, page, tables
from tests.common.toy_problem import ToyProblem


def toy(agent: str, workload: str = "dials", seed: int = 0, budget: int = 12) -> Run:
    problem = ToyProblem(task=workload)
    return run(
        Task(workload, agent, seed, budget), problem, lambda state: {"baseline": math.exp(problem.estimate(state))}
    )


@pytest.fixture(scope="module")
def found() -> Comparison:
    return Comparison(
        tuple(
            toy(agent, workload, seed)
            for workload in ("dials", "dials<2>")
            for agent in ("random", "beam")
            for seed in (0, 1)
        )
    )


def test_every_run_has_the_evaluations_it_was_given(found):
    assert {run.evaluations for run in found.runs} == {12}
    assert all(len(run.curve) == 12 and run.verified == 12 for run in found.runs)


def test_a_run_adds_up_the_time_of_its_evaluations():
    one = toy("beam")
    assert 0 < one.evaluating < one.seconds
    assert one.overhead == pytest.approx((one.seconds - one.evaluating) / one.evaluating)


def test_speedups_are_those_of_the_winner_timed_again(found):
    for one in found.runs:
        assert one.speedups["baseline"] == pytest.approx(one.curve[-1])


def test_figures_are_what_their_names_say(found):
    figures = found.summary("beam")
    speedups = [run.speedups["baseline"] for run in found.of("beam")]
    assert figures["geomean over baseline"] == pytest.approx(geomean(speedups))
    assert figures["max over baseline"] == max(speedups)
    assert figures["fast_1 over baseline"] == sum(s > 1 for s in speedups) / 4
    assert figures["verified"] == 1.0
    assert figures["area"] == pytest.approx(sum(run.area for run in found.of("beam")) / 4)


def test_the_curve_is_the_geometric_mean_and_rises(found):
    curve = found.curve("beam", "dials")
    assert list(curve) == sorted(curve)
    assert curve[-1] == pytest.approx(geomean([run.curve[-1] for run in found.of("beam", "dials")]))
    assert found.reached("beam", curve[0]) == 1
    assert found.reached("beam", 1e9) is None


def test_a_run_that_ends_early_stays_at_its_end():
    def with_curve(*curve):
        return Run("w", "a", 0, len(curve), 1, curve, (), "", "", 1.0, 0.5)

    found = Comparison((with_curve(None, 1.0, 4.0), with_curve(1.0)))
    assert found.curve("a") == pytest.approx((1.0, 1.0, 2.0))
    assert overview(found)[1][0] == "a" and "-" in overview(found)[1]


def test_nothing_verified_is_no_speedup():
    one = Run("w", "a", 0, 3, 0, (None, None, None), (), "x", "x", 1.0, 0.5)
    found = Comparison((one,))
    assert found.references == ()
    assert one.area == 0.0
    assert "-" in tables(found)


def test_the_page_is_whole_and_escapes_what_it_shows(found):
    pytest.importorskip("matplotlib")
    text = page(found, "<title>")
    assert text.count("<svg") == 3
    assert "&lt;title&gt;" in text and "dials&lt;2&gt;" in text and "dials<2>" not in text
    assert not re.search(r"""(src|href)=["']http""", text)
    assert all(action in text for action in found.runs[2].actions)


def test_a_comparison_is_read_back_from_its_json(found):
    text = json.dumps(found.to_json())
    assert tuple(Run.from_json(run) for run in json.loads(text)["runs"]) == found.runs


def test_a_proposer_is_counted_up_to_where_uniform_ends():
    def with_curve(agent, *curve):
        return Run("w", agent, 0, len(curve), len(curve), curve, (), "", "", 1.0, 0.5)

    runs = (
        with_curve("beam/uniform", 1.0, 1.5, 2.0, 2.0),
        with_curve("beam", 1.0, 3.0),  # its own is the cost model
        with_curve("beam/heuristic", 1.0, 1.5),
        with_curve("mcts", 1.0, 3.0),
        with_curve("random", 1.0, 3.0),
    )
    found = Comparison(runs)
    assert found.proposers() == {"beam": {"uniform": 3, "cost": 2, "heuristic": None}}
    assert found.to_json()["evaluations to the geomean of uniform"] == found.proposers()
    assert "evaluations to the geomean of uniform" in tables(found)
    assert "evaluations to the geomean of uniform" not in tables(Comparison(runs[-1:]))


def test_json_holds_everything(found):
    data = found.to_json()
    assert set(data["summary"]) == {"random", "beam"}
    assert len(data["runs"]) == 8 and data["runs"][0]["speedups"]
