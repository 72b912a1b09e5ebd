"""Transformers in this process, with a small random model."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from agents.base import Budget
from agents.llm.adviser import Adviser
from agents.llm.agent import LLMAgent
from agents.llm.formatter import Form, Formatter
from agents.llm.policy import Constraint, Message, Role, Sampling, Unavailable
from agents.llm.transformers_policy import Transformers
from tests.agents.llm.tiny_model import save
from tests.common.toy_problem import ToyProblem

TALK = (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Which?"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Transformers:
    import torch

    torch.set_num_threads(1)
    return Transformers(save(tmp_path_factory.mktemp("tiny"), positions=2048), "cpu")


def test_a_seed_repeats_an_answer_and_answers_differ(model):
    sampling = Sampling(3, 1.0, 12, seed=5)
    first, second = model.act_batch([TALK, TALK], sampling)
    assert [answer.text for answer in first] == [answer.text for answer in second]
    assert len({answer.text for answer in first}) == 3
    assert first[0].prompt_tokens > 20 and first[1].prompt_tokens == 0
    assert all(0 < answer.completion_tokens <= 12 and not answer.failure for answer in first)


def test_greedy_answers_are_equal(model):
    ((one, two),) = model.act_batch([TALK], Sampling(2, 0.0, 8))
    assert one.text == two.text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_even_an_untrained_model_gives_permitted_answers(model, temperature):
    choices = ("loop_split(i; 8)", "loop_split(i; 16)", "stop()")
    for seed in range(4):
        sampling = Sampling(1, temperature, 64, seed, Constraint(choices, 2))
        ((answer,),) = model.act_batch([TALK], sampling)
        assert 1 <= len(answer.text.split("\n")) <= 2 and set(answer.text.split("\n")) <= set(choices)


def test_a_prompt_that_is_too_long_is_a_failure(model):
    ((answer,),) = model.act_batch([(Message(Role.USER, "x" * 3000),)], Sampling())
    assert answer.failure.startswith("window: a prompt of 3,0")


def test_an_untrained_model_plays_with_legal_actions_only(model):
    agent = LLMAgent(Adviser(model, Formatter(Form.CALL), Sampling(max_tokens=32)))
    events = []
    result = agent.solve(ToyProblem(), Budget(5), np.random.default_rng(0), events.append)
    assert result.counts.evaluations == 5 and not [e for e in events if type(e).__name__ == "Refused"]


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(Unavailable, match="no causal language model"):
        Transformers(str(tmp_path))
