"""A trace replays, says what differs, shrinks, and survives its text form."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.common.actions import STOP, Action, parse_action
from envs.common.evaluation import Evaluation, Status
from envs.common.trace import Difference, Trace, TraceError, minimise, parse, record, replay, show, verify
from tests.common.toy_problem import ToyProblem, hill

UP_A, DOWN_A = Action("turn", ("a",), ("up",)), Action("turn", ("a",), ("down",))
UP_B, SWAP = Action("turn", ("b",), ("up",)), Action("swap", ("a", "b"))


def traced(*actions: Action, problem: ToyProblem | None = None) -> Trace:
    problem = problem or ToyProblem()
    states = [problem.root]
    for action in actions:
        states.append(problem.apply(states[-1], action))
    return record(problem, actions, problem.evaluate(states), "llvm", {"leirgym": "0.1.0"})


@st.composite
def walks(draw: st.DrawFn) -> tuple[Action, ...]:
    problem = ToyProblem()
    state, actions = problem.root, []
    for choice in draw(st.lists(st.integers(0, 100), max_size=10)):
        legal = problem.legal(state)
        actions.append(legal[choice % len(legal)])
        state = problem.apply(state, actions[-1])
    return tuple(actions)


@given(walks())
def test_parse_reads_what_show_writes(actions: tuple[Action, ...]) -> None:
    trace = traced(*actions)
    assert parse(show(trace)) == trace
    assert show(parse(show(trace))) == show(trace)


def test_a_failed_evaluation_survives_the_text_form() -> None:
    trace = traced(UP_A, problem=ToyProblem(failures={(0, 0, 1): Status.WRONG}))
    assert trace.evaluation is not None and trace.evaluation.status is Status.WRONG
    assert parse(show(trace)) == trace


@given(walks())
def test_replay_passes_the_recorded_keys(actions: tuple[Action, ...]) -> None:
    problem = ToyProblem()
    trace = traced(*actions)
    assert [problem.key(state) for state in replay(trace, problem)] == [trace.root, *trace.keys]
    assert verify(trace, problem, measure=True) == ()


def test_evaluations_of_other_programs_are_left_out() -> None:
    problem = ToyProblem()
    trace = record(problem, [UP_A], problem.evaluate([(4, 4, 4), (0, 0, 1)]))
    assert [item.key for item in trace.evaluations] == ["0-0-1"]
    assert trace.final == "0-0-1"
    assert trace.evaluation == trace.evaluations[0]


def test_verify_names_the_action_that_no_longer_applies() -> None:
    trace = traced(UP_A, UP_A, STOP)
    [finding] = verify(trace, ToyProblem(top=1))
    assert finding.difference is Difference.REPLAY_FAILED
    assert str(finding) == ("replay_failed: action 2 of 3, turn(a; up): extent: dial a runs from 0 to 1, not to 2")


def test_verify_names_the_key_that_differs() -> None:
    trace = traced(UP_A, UP_B)
    changed = replace(trace, keys=("0-0-1", "0-0-4"), evaluations=())
    [finding] = verify(changed, ToyProblem())
    assert str(finding) == "key_differs: after action 2, turn(b; up), the key is 0-1-1, not 0-0-4"
    [finding] = verify(replace(trace, root="1-1-1", evaluations=()), ToyProblem())
    assert str(finding) == "key_differs: at the root the key is 0-0-0, not 1-1-1"


def test_verify_measures_only_when_asked() -> None:
    problem = ToyProblem()
    trace = traced(UP_A)
    verify(trace, problem)
    assert problem.evaluations == 0
    verify(trace, problem, measure=True)
    assert problem.evaluations == 2


def test_verify_finds_a_verdict_that_differs() -> None:
    problem = ToyProblem(failures={(0, 0, 1): Status.CRASHED})
    [finding] = verify(traced(UP_A), problem, measure=True)
    assert str(finding) == "verdict_differs: 0-0-1 is crashed (dials 0-0-1: crashed), not ok"


def test_verify_finds_a_speedup_outside_the_recorded_interval() -> None:
    slower = ToyProblem(landscape=lambda state: hill(state) - (state != (0, 0, 0)) * math.log(2))
    [finding] = verify(traced(UP_A), slower, measure=True)
    assert finding.difference is Difference.SPEEDUP_DIFFERS
    assert "has speedup 0.222 [0.219, 0.224], recorded was 0.443 [0.439, 0.448]" in finding.sentence


def test_a_slightly_different_speedup_is_the_same_speedup() -> None:
    close = ToyProblem(landscape=lambda state: hill(state) - 0.01)
    assert verify(traced(UP_A), close, measure=True) == ()


@pytest.mark.parametrize(
    ("actions", "shorter"),
    [
        ((), ()),
        ((UP_A, DOWN_A), ()),
        ((UP_A, SWAP), (UP_A,)),
        ((STOP, UP_A, STOP), (UP_A,)),
        ((UP_A, UP_B, DOWN_A), (UP_A,)),
        ((UP_A, UP_A), (UP_A, UP_A)),
    ],
)
def test_minimise_drops_what_the_last_program_does_not_need(
    actions: tuple[Action, ...], shorter: tuple[Action, ...]
) -> None:
    assert minimise(traced(*actions), ToyProblem()).actions == shorter


@given(walks())
def test_a_minimised_trace_leads_to_the_same_key_and_cannot_shrink(actions: tuple[Action, ...]) -> None:
    problem, trace = ToyProblem(), traced(*actions)
    small = minimise(trace, problem)
    assert small.final == trace.final
    assert small.evaluation == trace.evaluation
    assert verify(small, problem, measure=True) == ()
    assert minimise(small, problem) == small
    assert len(small.actions) >= sum(replay(small, problem)[-1])


def broken(**changes: object) -> str:
    return json.dumps({**json.loads(show(traced(UP_A))), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a trace is a JSON object: Expecting value"),
        ("[" * 100_000, "a trace is a JSON object: "),
        ("[]", "a trace is a JSON object, not a list"),
        ("{}", "format: expected 'leirgym-trace-1', got None"),
        (broken(format="x"), "format: expected 'leirgym-trace-1', got 'x'"),
        (broken(colour="red"), "colour: no such field; a trace has task, target"),
        (broken(task=3), "task: expected a text, got a number"),
        (broken(task=""), "a trace has a task"),
        (broken(actions="turn(a; up)"), "actions: expected a list, got a text"),
        (broken(actions=["turn(a"]), r"actions\[0\]: expected strategy\(sites; parameters\), got 'turn\(a'"),
        (broken(actions=[None]), r"actions\[0\]: expected a text, got null"),
        (broken(keys=[]), "a trace has a key for each action: 1 actions, 0 keys"),
        (broken(keys=["0-0-2"]), "an evaluation belongs to no state of the trace: key 0-0-1"),
        (broken(evaluations=[{}]), r"evaluations\[0\]: the field 'timing' is missing"),
        (broken(evaluations=[7]), r"evaluations\[0\]: expected an object, got a number"),
        (broken(environment={"tvm": 0.27}), "environment.tvm: expected a text, got a number"),
    ],
)
def test_a_malformed_trace_is_refused_by_the_name_of_its_field(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=f"^{message}"):
        parse(text)


def test_a_missing_field_is_named() -> None:
    data = json.loads(show(traced(UP_A)))
    for name in ("task", "target", "root", "actions", "keys", "evaluations", "environment"):
        with pytest.raises(TraceError, match=f"^{name}: the field is missing"):
            parse(json.dumps({key: value for key, value in data.items() if key != name}))


@pytest.mark.parametrize(
    "change",
    [
        {"status": "splendid"},
        {"status": "wrong"},
        {"timing": {"ratio": 1.0}},
        {"checks": [{"name": 1}]},
        {"checks": 3},
        {"speed": 3},
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    [_, evaluation] = json.loads(show(traced(UP_A)))["evaluations"]
    with pytest.raises(TraceError, match=r"^evaluations\[0\]: "):
        parse(broken(evaluations=[{**evaluation, **change}]))


@given(st.text(max_size=200))
def test_no_text_but_a_trace_parses(text: str) -> None:
    with pytest.raises(TraceError):
        parse(text)


def test_traces_write_actions_as_everyone_does() -> None:
    assert '"turn(a; up)"' in show(traced(UP_A))
    assert parse_action("turn(a; up)") == UP_A


def test_a_trace_without_evaluations_has_no_verdict() -> None:
    trace = record(ToyProblem(), [UP_A])
    assert trace.evaluation is None
    assert Evaluation.__name__ not in show(trace)
