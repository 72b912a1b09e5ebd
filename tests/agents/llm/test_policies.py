"""Policies and what wraps them: scripts, chance, the cache, the token budget, the transcript, local models."""

from __future__ import annotations

import itertools
import json
import sqlite3
import sys
from collections import Counter

import numpy as np
import pytest

from agents.llm.adviser import Adviser, Limited, Patient, Transcript, printable
from agents.llm.answers import Answers, AnswersError, Cached
from agents.llm.formatter import Form, Formatter
from agents.llm.policy import (
    Chance,
    Completion,
    Constraint,
    Message,
    Role,
    Sampling,
    Scripted,
    Unavailable,
    digest,
    estimate_tokens,
)
from agents.llm.transformers_policy import Transformers, automaton
from agents.llm.vllm_policy import VLLM
from tests.common.toy_problem import ToyProblem

TALK = (Message(Role.USER, "Which?"),)
OTHER = (Message(Role.USER, "Which else?"),)
MENU = Constraint(tuple("abcd"), 2)


def test_a_script_is_told_in_turn_and_then_fails():
    policy = Scripted(["one", "two", "three"])
    (first, second), (third, fourth) = policy.act_batch([TALK, OTHER], Sampling(2))
    assert [first.text, second.text, third.text, fourth.text] == ["one", "two", "three", ""]
    assert fourth.failure == "unavailable: the script has 3 answers, all of them given"
    assert policy.asked == [TALK, TALK, OTHER, OTHER]


def test_a_function_answers_the_conversation():
    ((answer,),) = Scripted(lambda talk: talk[-1].content.upper()).act_batch([TALK], Sampling())
    assert answer.text == "WHICH?" and answer.prompt_tokens > 0


def test_chance_gives_only_what_is_permitted_evenly_and_repeatably():
    drawn = Counter[str]()
    for seed in range(400):
        sampling = Sampling(seed=seed, constraint=MENU)
        ((answer,),) = Chance().act_batch([TALK], sampling)
        assert ((answer,),) == tuple(Chance().act_batch([TALK], sampling))
        first, second = answer.text.split("\n")
        assert first != second and {first, second} <= set("abcd")
        drawn[first] += 1
    assert all(60 < count < 140 for count in drawn.values()) and len(drawn) == 4


def test_chance_says_nothing_where_anything_is_permitted():
    ((answer,),) = Chance().act_batch([TALK], Sampling())
    assert answer.text == ""


class Counting:
    """Counts the conversations it is asked."""

    name = "counting"

    def __init__(self, completion=None):
        self.asked = 0
        self.completion = completion or Completion("yes", prompt_tokens=10, completion_tokens=5)

    def act_batch(self, conversations, sampling):
        self.asked += len(conversations)
        return [(self.completion,) * sampling.count for _ in conversations]


def test_a_repeatable_request_is_asked_once(tmp_path):
    policy, greedy = Counting(), Sampling(temperature=0.0)
    cached = Cached(policy, Answers(tmp_path / "answers.sqlite"))
    first = cached.act_batch([TALK, OTHER, TALK], greedy)
    assert policy.asked == 2 and first[0] == first[2]
    again = Cached(policy, Answers(tmp_path / "answers.sqlite")).act_batch([TALK, OTHER], greedy)
    assert policy.asked == 2
    assert [(answer.text, answer.cached) for (answer,) in again] == [("yes", True)] * 2


@pytest.mark.parametrize(
    "other",
    [
        Sampling(temperature=0.5, seed=1),
        Sampling(temperature=0.0, seed=1),
        Sampling(temperature=0.0, count=2),
        Sampling(temperature=0.0, max_tokens=9),
        Sampling(temperature=0.0, constraint=MENU),
    ],
)
def test_another_sampling_is_another_request(other):
    policy = Counting()
    cached = Cached(policy, Answers(":memory:"))
    cached.act_batch([TALK], Sampling(temperature=0.0))
    cached.act_batch([TALK], other)
    assert policy.asked == 2
    assert digest("a", TALK, other) != digest("b", TALK, other) != digest("b", OTHER, other)


def test_what_is_drawn_without_a_seed_and_what_failed_is_not_remembered():
    policy = Counting()
    cached = Cached(policy, Answers(":memory:"))
    for _ in range(2):
        cached.act_batch([TALK], Sampling(temperature=1.0))
    assert policy.asked == 2 and len(cached.answers) == 0
    failing = Counting(Completion(failure="timeout: no answer"))
    cached = Cached(failing, Answers(":memory:"))
    for _ in range(2):
        cached.act_batch([TALK], Sampling(temperature=0.0))
    assert failing.asked == 2 and len(cached.answers) == 0


def test_the_first_answer_stands():
    answers = Answers(":memory:")
    answers.put("key", "model", [Completion("first \ud800")])
    answers.put("key", "model", [Completion("second")])
    assert answers.get("key") == (Completion("first \ud800"),) and answers.get("other") is None


def test_another_programs_file_is_refused_and_left_alone(tmp_path):
    foreign, text = tmp_path / "foreign.sqlite", tmp_path / "notes.txt"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    text.write_text("no database at all, and long enough to be read as a header of one")
    before = foreign.read_bytes(), text.read_bytes()
    for path in (foreign, text, tmp_path):
        with pytest.raises(AnswersError, match=str(path)):
            Answers(path)
    assert (foreign.read_bytes(), text.read_bytes()) == before


def test_a_token_budget_ends_with_a_refusal_and_memories_are_free():
    policy = Counting()
    limited = Limited(policy, 31)
    answers = [limited.act_batch([TALK], Sampling())[0][0] for _ in range(4)]
    assert [answer.failure for answer in answers] == ["", "", "", "budget: 45 tokens of 31 are spent"]
    assert policy.asked == 3 and limited.spent == 45
    free = Limited(Counting(Completion("yes", prompt_tokens=10, cached=True)), 5)
    assert all(not answer.failure for _ in range(9) for (answer,) in free.act_batch([TALK], Sampling()))
    with pytest.raises(ValueError, match="at least 1"):
        Limited(policy, 0)


def test_a_policy_that_fails_again_and_again_is_not_asked_any_more():
    policy = Counting(Completion(failure="timeout: no answer"))
    patient = Patient(policy, 2)
    answers = [patient.act_batch([TALK], Sampling())[0][0].failure for _ in range(4)]
    assert answers == ["timeout: no answer"] * 2 + ["unavailable: 2 requests in a row failed, no more are made"] * 2
    assert policy.asked == 2
    recovering = Patient(Scripted(["fine"]), 1)
    assert recovering.act_batch([TALK], Sampling())[0][0].text == "fine" and recovering.failures == 0


class Narrow:
    """Reads so many characters, and has no further fault."""

    name = "narrow"

    def __init__(self, characters):
        self.characters, self.asked = characters, []

    def act_batch(self, conversations, sampling):
        self.asked += conversations
        return [(self._answer(talk),) * sampling.count for talk in conversations]

    def _answer(self, talk):
        size = sum(len(message.content) for message in talk)
        return Completion(failure=f"window: 400, {size} characters") if size > self.characters else Completion("1")


def test_a_prompt_that_does_not_fit_is_asked_again_shorter_until_it_fits():
    problem, exchanges = ToyProblem(), []
    formatter = Formatter()
    view = formatter.view(problem, problem.root, problem.legal(problem.root), history=["x" * 900] * 9)
    policy = Narrow(1500)
    replies = Adviser(policy, formatter, Sampling(2), exchanges.append).ask(view, np.random.default_rng(0))
    assert [reply.refusals for reply in replies] == [(), ()] and replies[0].actions
    sizes = [sum(len(message.content) for message in talk) for talk in policy.asked]
    assert len(sizes) > 2 and all(later <= sooner / 2 for sooner, later in itertools.pairwise(sizes))
    assert all(talk[1].content.startswith("Program:\na=0\nb=0\nc=0") for talk in policy.asked)
    assert len({exchange.sampling.seed for exchange in exchanges}) == 1
    assert len({exchange.formatter for exchange in exchanges}) == len(sizes) == len(exchanges) / 2


@pytest.mark.parametrize("form", Form)
def test_a_model_that_reads_nothing_is_asked_a_few_times_and_refused(form):
    problem, policy = ToyProblem(), Narrow(0)
    formatter = Formatter(form)
    view = formatter.view(problem, problem.root, problem.legal(problem.root), history=["x" * 90] * 9)
    (reply,) = Adviser(policy, formatter).ask(view, np.random.default_rng(0))
    assert not reply.actions and reply.refusals[0].startswith("size: the shortest prompt has ")
    assert 1 <= len(policy.asked) < 10


def test_a_prompt_that_does_not_fit_says_nothing_against_the_server():
    policy, told = Narrow(0), []
    patient = Patient(policy, 2, told.append)
    for _ in range(5):
        patient.act_batch([TALK], Sampling())
    assert len(policy.asked) == 5 and patient.failures == 0 and not told


def test_who_gives_a_policy_up_is_told_once_and_why():
    told: list[str] = []
    patient = Patient(Counting(Completion(failure="connection: refused")), 2, told.append)
    for _ in range(5):
        patient.act_batch([TALK], Sampling(2))
    assert told == ["counting is not asked any more: 2 requests in a row failed, connection: refused"]


def test_a_transcript_holds_every_exchange_and_what_was_made_of_it(tmp_path):
    path = tmp_path / "transcript.jsonl"
    formatter = Formatter(Form.MENU, most=2)
    adviser = Adviser(Scripted(["2\n77", "\ud800\x00"]), formatter, Sampling(temperature=0.0), Transcript(path))
    problem = ToyProblem()
    view = formatter.view(problem, problem.root, problem.legal(problem.root))
    for _ in range(3):
        adviser.ask(view, np.random.default_rng(0))
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert first["format"] == "leirgym-transcript-1" and first["formatter"] == formatter.version
    assert first["model"] == "scripted" and first["messages"][1]["role"] == "user"
    assert first["answer"] == "2\n77" and first["actions"] == ["turn(a; up)"]
    assert first["refusals"] == ["unknown_number: the menu runs from 1 to 4, not to 77"]
    assert first["prompt_tokens"] > 0 and first["seconds"] >= 0 and first["sampling"]["temperature"] == 0
    assert second["actions"] == [] and second["refusals"][0].startswith("malformed")
    assert third["failure"].startswith("unavailable") and third["refusals"] == [third["failure"]]


def test_seeds_come_from_the_search_unless_decoding_is_greedy():
    seen = []

    class Noting(Counting):
        def act_batch(self, conversations, sampling):
            seen.append(sampling.seed)
            return super().act_batch(conversations, sampling)

    problem = ToyProblem()
    view = Formatter().view(problem, problem.root, problem.legal(problem.root))
    for sampling in (Sampling(), Sampling(), Sampling(temperature=0.0), Sampling(seed=7)):
        Adviser(Noting(), sampling=sampling).ask(view, np.random.default_rng(5))
    assert seen[0] is not None and seen == [seen[0], seen[0], None, 7]


def test_no_character_survives_that_can_not_be_printed():
    assert printable("a\r\nb\tc\x1b[31m\u202e\ud800é") == "a\nb\tc?[31m??é"


@pytest.mark.parametrize(("factory", "package"), [(Transformers, "transformers"), (VLLM, "vllm")])
def test_a_back_end_that_is_not_installed_says_how_to_get_it(factory, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unavailable, match=r"pip install 'leirgym\[(train|vllm)\]'"):
        factory("nowhere")


def test_an_estimate_of_tokens_grows_with_the_text():
    assert estimate_tokens("") == 0 and estimate_tokens("ab") == 2 and estimate_tokens("é" * 9) == 10
    assert estimate_tokens("\ud800") == 1


@pytest.mark.parametrize(
    "build",
    [lambda: Sampling(0), lambda: Sampling(max_tokens=0), lambda: Sampling(temperature=-1), lambda: Constraint(())],
)
def test_impossible_requests_are_refused(build):
    with pytest.raises(ValueError, match="at least"):
        build()


def walks(step, alphabet, length):
    """Everything that can be generated, up to a length, by what may follow."""
    done, open_ = set(), [()]
    while open_:
        generated = open_.pop()
        for token in step(generated):
            assert token in alphabet
            if token == 0:
                done.add(generated)
            elif len(generated) < length:
                open_.append((*generated, token))
    return done


@pytest.mark.parametrize("separator", [(9,), (8, 9)])
@pytest.mark.parametrize("choices", [((1,), (2,)), ((1,), (1, 2), (2, 1)), ((1, 9, 1), (1,))])
@pytest.mark.parametrize("most", [1, 2])
def test_local_decoding_generates_the_permitted_answers_and_no_others(choices, separator, most):
    step = automaton(choices, separator, 0, most)
    permitted = set(choices)
    if most == 2:
        permitted |= {(*one, *separator, *other) for one in choices for other in choices}
    assert walks(step, {0, 1, 2, 8, 9}, 9) == permitted
