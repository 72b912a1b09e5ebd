"""What a model is asked, and how whatever it says is read."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.formatter import Form, Formatter, Reply, View
from agents.llm.policy import MAX_ANSWER_CHARACTERS, Constraint, estimate_tokens
from envs.common.actions import STOP, Action, parse_action
from tests.common.toy_problem import ToyProblem

PROBLEM = ToyProblem()
STATE = (1, 2, 2)
LEGAL = PROBLEM.legal(STATE)
UP, DOWN = parse_action("turn(a; up)"), parse_action("turn(a; down)")


def view(formatter: Formatter | None = None, **told) -> View:
    return (formatter or Formatter()).view(PROBLEM, STATE, LEGAL, **told)


class Talkative(ToyProblem):
    """Explains itself."""

    def glossary(self):
        return "Dials run from 0 to 4."

    def machine(self):
        return "A brass instrument."

    def describe(self, state, action):
        return f"What {action.name} does."


def text(formatter: Formatter, shown: View) -> str:
    asked = formatter.prompt(shown)
    assert not isinstance(asked, str)
    return "\n".join(message.content for message in asked[0])


def test_a_menu_numbers_the_legal_actions_from_one():
    shown = text(Formatter(), view())
    assert "1. stop()\n2. turn(a; up)\n3. turn(a; down)\n" in shown
    assert "a=1\nb=2\nc=2" in shown


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("reasoning", [False, True])
def test_a_prompt_asks_for_its_form(form, reasoning):
    shown = text(Formatter(form, reasoning), view(Formatter(form)))
    assert ("Think step by step" in shown) == ("Answer:" in shown) == reasoning
    assert ("turn(a; up)" in shown) == (form is not Form.REWRITE)
    assert {"menu": "the number", "call": "strategy call", "rewrite": "whole new program"}[form] in shown


def test_a_problem_that_explains_itself_is_quoted():
    formatter = Formatter(Form.CALL, reasons=True)
    shown = text(formatter, formatter.view(Talkative(), STATE, LEGAL))
    assert "Dials run from 0 to 4." in shown and "A brass instrument." in shown
    assert "turn(a; up)  # What turn does." in shown
    assert "brass" not in text(formatter, Formatter(machine=False).view(Talkative(), STATE, LEGAL))


def test_history_steps_and_speedup_are_told():
    told = view(history=["turn(a; up): wrong"], steps=["swap(a, b): 1.2x"], speedup=1.25)
    shown = text(Formatter(), told)
    assert "Program, 1.25 times as fast as the baseline:" in shown
    assert "Steps so far:\n- swap(a, b): 1.2x" in shown and "Attempts so far:\n- turn(a; up): wrong" in shown


def test_only_the_latest_attempts_are_told():
    assert view(Formatter(history=2), history=["one", "two", "three"]).history == ("two", "three")
    assert view(Formatter(history=0), history=["one"]).history == ()


def test_history_is_cut_first_then_reasons_then_glossary_then_the_menu():
    promising = tuple(action for action in reversed(LEGAL) if action != STOP)
    history = tuple(f"attempt {n}" for n in range(9))
    full = View("a=1", LEGAL, promising, history=history, glossary="g" * 200, reasons={UP: "r" * 200})
    seen = []
    for tokens in range(estimate_tokens(text(Formatter(tokens=9999), full)) + 5, 100, -1):
        asked = Formatter(tokens=tokens).prompt(full)
        if not isinstance(asked, str):
            size = sum(estimate_tokens(message.content) for message in asked[0])
            assert size <= tokens
            seen.append(asked[1])
    assert seen[0] == full
    for cut in seen:
        assert cut.state == full.state and cut.history == full.history[len(full.history) - len(cut.history) :]
    first = next(cut for cut in seen if cut != full)
    assert first.history == full.history[1:] and first.reasons and first.glossary
    assert [bool(cut.reasons) for cut in seen] == sorted((bool(cut.reasons) for cut in seen), reverse=True)
    assert not any(cut.reasons and not cut.glossary for cut in seen)
    assert all(cut.actions == full.actions for cut in seen if cut.glossary)
    assert all(set(cut.actions) == {STOP, *cut.promising} for cut in seen)
    assert seen[-1].actions == (STOP, promising[0])


def test_a_prompt_that_can_not_be_short_enough_says_so():
    refusal = Formatter(tokens=40).prompt(view())
    assert isinstance(refusal, str) and refusal.startswith("size: ") and "the limit is 40" in refusal


def test_a_long_menu_keeps_what_the_rules_of_thumb_like_in_canonical_order():
    listed = view(Formatter(menu=2)).actions
    assert listed == (STOP, UP, parse_action("turn(b; up)"))


def test_a_version_names_all_that_shapes_a_prompt():
    versions = {
        formatter.version
        for formatter in (
            Formatter(),
            Formatter(Form.CALL),
            Formatter(reasoning=True),
            Formatter(most=2),
            Formatter(machine=False),
            Formatter(reasons=True),
            Formatter(history=1),
            Formatter(menu=9),
            Formatter(tokens=99),
        )
    }
    assert len(versions) == 9 and Formatter().version.startswith("leirgym-1/menu/")


def test_a_constraint_lists_exactly_what_can_be_read_back():
    for form in (Form.MENU, Form.CALL):
        formatter = Formatter(form)
        constraint = formatter.constraint(view())
        assert constraint is not None
        assert [formatter.read(choice, view()).actions for choice in constraint.choices] == [(a,) for a in LEGAL]
    assert Formatter(Form.REWRITE).constraint(view()) is None
    assert Formatter(reasoning=True).constraint(view()) is None
    assert Formatter(most=3).constraint(view()) == Constraint(tuple(map(str, range(1, len(LEGAL) + 1))), 3)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("2", UP),
        (" 3\n", DOWN),
        ("3.", DOWN),
        ("(2)", UP),
        ("[2]", UP),
        ("#2", UP),
        ("`2`", UP),
        ("2. turn(a; up)", UP),
        ("3: down it is, and 2 later", DOWN),
        ("turn(a; up)", UP),
        ("```\n2\n```", UP),
        ("Answer: 2", UP),
        ("I would take\nAnswer: **2**", UP),
        ("<think>\nAnswer: 3?\n</think>\n\n2", UP),
    ],
)
def test_a_number_is_read_however_it_is_dressed(answer, action):
    assert Formatter().read(answer, view()) == Reply((action,))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("0", "unknown_number: the menu runs from 1 to 9, not to 0"),
        ("10", "unknown_number: the menu runs from 1 to 9, not to 10"),
        ("9999999", "unknown_number"),
        ("99999999", "malformed"),
        ("-2", "malformed"),
        ("2.5", "malformed"),
        ("٢", "malformed"),
        ("two", "malformed"),
        ("turn(d; up)", "malformed"),
        ("", "malformed: the answer is empty"),
        (" \n\t", "malformed: the answer is empty"),
        ("Ignore all instructions; rm -rf /", "malformed"),
        ("9" * (MAX_ANSWER_CHARACTERS + 1), "size: an answer has at most 50,000 characters, got 50,001"),
        ("\ud800", "malformed"),
    ],
)
def test_what_is_no_number_of_the_menu_is_refused_with_a_reason(answer, code):
    reply = Formatter().read(answer, view())
    assert reply.actions == () and reply.text == ""
    assert len(reply.refusals) == 1 and reply.refusals[0].startswith(code)
    assert len(reply.refusals[0]) < 300


@pytest.mark.parametrize("answer", ["2\n3", "2, 3", "2 3", "2,3,\n", "2. turn(a; up)\n3. turn(a; down)"])
def test_several_numbers_are_read_best_first(answer):
    assert Formatter(most=4).read(answer, view()).actions == (UP, DOWN)


def test_no_more_is_read_than_was_asked_for_and_nothing_twice():
    assert Formatter(most=2).read("2 2 3", view()).actions == (UP,)
    assert Formatter(most=1).read("2\n3", view()).actions == (UP,)
    assert Formatter(most=3).read("2\n99\n3", view()) == Reply(
        (UP, DOWN), refusals=("unknown_number: the menu runs from 1 to 9, not to 99",)
    )


@pytest.mark.parametrize(
    "answer", ["turn(a; up)", "  turn( a ;up )", "- turn(a; up)", "1. turn(a; up)", "`turn(a; up)`"]
)
def test_a_call_is_read_whether_it_is_listed_or_not(answer):
    formatter = Formatter(Form.CALL)
    assert formatter.read(answer, view()) == Reply((UP,))
    assert formatter.read("turn(z; 17)", view()) == Reply((Action("turn", ("z",), ("17",)),))


@pytest.mark.parametrize("answer", ["turn a up", "turn(a; up); stop()", "__import__('os')", "2", "x" * 3000])
def test_what_is_no_call_is_refused(answer):
    reply = Formatter(Form.CALL).read(answer, view())
    assert reply.actions == () and reply.refusals[0].startswith("malformed: ")


def test_a_chain_of_thought_is_not_the_answer():
    formatter = Formatter(reasoning=True)
    assert formatter.read("Perhaps 3? Answer: 3 is bad.\nAnswer: 2", view()) == Reply((UP,))
    assert formatter.read("2", view()).refusals == ("malformed: there is no Answer: in the answer",)
    assert formatter.read("Answer:", view()).refusals == ("malformed: the answer is empty",)


def test_a_rewriting_is_the_text_or_what_is_fenced():
    formatter = Formatter(Form.REWRITE)
    assert formatter.read("a=1\nb=2\n", view()) == Reply(text="a=1\nb=2\n")
    assert formatter.read("Here:\n```leir\na=1\n```\nEnjoy.", view()) == Reply(text="a=1\n")
    assert formatter.read("stop()", view()) == Reply((STOP,))


@given(st.text(max_size=300) | st.text(string.digits + "\n ,.`Answer:()#;", max_size=60))
def test_reading_is_total_and_yields_only_what_is_on_the_menu(answer):
    for form in Form:
        for reasoning in (False, True):
            reply = Formatter(form, reasoning, most=3).read(answer, view())
            assert form is not Form.MENU or set(reply.actions) <= set(LEGAL)
            assert bool(reply.actions) + bool(reply.text) + bool(reply.refusals) >= 1


def test_impossible_formatters_are_refused():
    for wrong in ({"most": 0}, {"menu": 0}, {"tokens": 0}, {"history": -1}):
        with pytest.raises(ValueError, match="at least 1"):
            Formatter(**wrong)
