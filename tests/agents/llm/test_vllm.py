"""vLLM's own server and engine, with a small random model: what it permits is what it says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

pytest.importorskip("vllm")

from agents.base import Budget, make_agent
from agents.llm.adviser import Adviser
from agents.llm.client import Client, Structured
from agents.llm.formatter import Form, Formatter
from agents.llm.policy import Constraint, Message, Role, Sampling
from agents.llm.proposer import LLMProposer
from agents.llm.vllm_policy import VLLM
from tests.agents.llm.tiny_model import save
from tests.common.toy_problem import ToyProblem

pytestmark = pytest.mark.vllm

TALK = (Message(Role.USER, "Which?"),)
CHOICES = ("loop_split(i.2; 8)", "loop_split(i; 16)", "f(a, b; x-1+2)", "stop()")
STARTUP = 600.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return save(tmp_path_factory.mktemp("tiny"), positions=4096)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    """The address of a server, started for these tests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", str(port)]
    options = ["--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "4096", "--host", "127.0.0.1"]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output, env=os.environ | ENVIRONMENT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + STARTUP
        while not _healthy(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(60)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def test_the_server_says_what_it_is_and_keeps_to_the_permitted_answers(server):
    client = Client(server, timeout=300)
    assert client.structured is Structured.VLLM
    for most in (1, 3):
        for seed in range(3):
            sampling = Sampling(2, 1.0, 200, seed, Constraint(CHOICES, most))
            for answer in client.act_batch([TALK], sampling)[0]:
                lines = answer.text.split("\n")
                assert not answer.failure and set(lines) <= set(CHOICES) and 1 <= len(lines) <= most
                assert answer.completion_tokens > 0


@pytest.mark.parametrize("form", [Form.MENU, Form.CALL])
def test_beam_search_runs_with_the_server_and_nothing_is_refused(server, form):
    exchanges = []
    adviser = Adviser(Client(server, timeout=300), Formatter(form, most=3), Sampling(max_tokens=100), exchanges.append)
    agent = make_agent("beam", width=2, proposer=LLMProposer(adviser))
    result = agent.solve(ToyProblem(), Budget(8), np.random.default_rng(0))
    assert result.counts.evaluations == 8
    assert exchanges and all(exchange.reply.actions and not exchange.reply.refusals for exchange in exchanges)


def test_a_prompt_that_is_too_long_is_a_failure(server):
    ((answer,),) = Client(server, timeout=300).act_batch([(Message(Role.USER, "x" * 5000),)], Sampling())
    assert answer.failure.startswith("status: 400, ")


def test_the_engine_in_this_process_keeps_to_the_permitted_answers(folder, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model = VLLM(folder, dtype="bfloat16", enforce_eager=True, max_model_len=4096)
    answers = model.act_batch([TALK, TALK], Sampling(2, 1.0, 200, 3, Constraint(CHOICES, 2)))
    for answer in (answer for found in answers for answer in found):
        assert not answer.failure and set(answer.text.split("\n")) <= set(CHOICES)
    ((long,),) = model.act_batch([(Message(Role.USER, "x" * 5000),)], Sampling())
    assert long.failure.startswith("unavailable: ")
