"""vLLM's own server and engine, with a small random model: what it permits is what it says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("vllm")

import leirgym
from agents.base import Budget, make_agent
from agents.llm.adviser import Adviser, Patient
from agents.llm.client import Client, Structured
from agents.llm.formatter import Form, Formatter
from agents.llm.policy import Constraint, Message, Role, Sampling
from agents.llm.proposer import LLMProposer
from agents.llm.vllm_policy import VLLM
from envs.common.console import Verbs
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
    with started(folder, tmp_path_factory.mktemp("log") / "server.log") as (url, _):
        yield url


@contextmanager
def started(folder: str, log: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server while the context lasts: its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", str(port)]
    options = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", "--host", "127.0.0.1"]
    options += ["--max-num-batched-tokens", "16384"]
    with log.open("w") as output:
        settings = {"stdout": output, "stderr": output, "env": os.environ | ENVIRONMENT, "start_new_session": True}
        process = subprocess.Popen([*command, *options], **settings)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + STARTUP
        while not _healthy(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(1)
        yield f"{url}/v1", process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the engine too, in whatever state it is
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
            (answers,) = client.act_batch([TALK], sampling)
            for answer in answers:
                lines = answer.text.split("\n")
                assert not answer.failure and set(lines) <= set(CHOICES) and 1 <= len(lines) <= most
            assert answers[0].completion_tokens > 0  # those of the whole request


def test_the_key_of_older_servers_constrains_nothing(server):
    client = Client(server, timeout=300)
    request = {"extra_body": {"guided_choice": list(CHOICES)}, "max_tokens": 40, "temperature": 0}
    messages = [{"role": "user", "content": "Which?"}]
    answer = client._client.chat.completions.create(model=client.name.partition("#")[2], messages=messages, **request)
    assert answer.choices[0].message.content not in CHOICES
    ((kept,),) = client.act_batch([TALK], Sampling(1, 0.0, 40, None, Constraint(CHOICES)))
    assert kept.text in CHOICES


@pytest.mark.parametrize("form", [Form.MENU, Form.CALL])
def test_beam_search_runs_with_the_server_and_nothing_is_refused(server, form):
    exchanges = []
    adviser = Adviser(Client(server, timeout=300), Formatter(form, most=3), Sampling(max_tokens=100), exchanges.append)
    agent = make_agent("beam", width=2, proposer=LLMProposer(adviser))
    result = agent.solve(ToyProblem(), Budget(8), np.random.default_rng(0))
    assert result.counts.evaluations == 8
    assert exchanges and all(exchange.reply.actions and not exchange.reply.refusals for exchange in exchanges)


def test_a_prompt_that_is_too_long_is_a_failure_and_an_adviser_asks_a_shorter_one(server):
    ((answer,),) = Client(server, timeout=300).act_batch([(Message(Role.USER, "x" * 5000),)], Sampling())
    assert answer.failure.startswith("window: 400, ")
    problem, asked = ToyProblem(), []
    formatter = Formatter(tokens=99_999)
    view = formatter.view(problem, problem.root, problem.legal(problem.root), history=["x" * 2000] * 5)
    adviser = Adviser(Client(server, timeout=300), formatter, Sampling(max_tokens=8), asked.append)
    (reply,) = adviser.ask(view, np.random.default_rng(0))
    assert reply.actions and len(asked) > 1 and all(one.completion.failure for one in asked[:-1])


def test_the_documented_command_runs_beam_search_with_the_server(server, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    transcript = tmp_path / "transcript.jsonl"
    options = ["--agent", "beam", "--proposer", "llm", "--model", server, "--timeout", "300", "--budget", "4"]
    command = ["optimize", "softmax", *options, "--store", ":memory:", "--json", "--transcript", str(transcript)]
    result = CliRunner().invoke(Verbs(leirgym.VERBS), command)
    assert result.exit_code == 0, result.output
    exchanges = [json.loads(line) for line in transcript.read_text().splitlines()]
    answered = [exchange for exchange in exchanges if not exchange["failure"]]
    assert json.loads(result.stdout)["evaluations"] == 4 and answered
    assert all(exchange["actions"] for exchange in answered)
    assert all(exchange["failure"].startswith("window: ") for exchange in exchanges if exchange not in answered)


def test_a_server_that_is_killed_during_a_search_is_told_and_the_search_goes_on(folder, tmp_path):
    with started(folder, tmp_path / "server.log") as (url, process):
        told: list[str] = []
        problem, asked = ToyProblem(), []

        def kill_after_two(exchange):
            asked.append(exchange)
            if len(asked) == 2:
                os.killpg(process.pid, signal.SIGKILL)  # its engine runs in a process of its own
                process.wait(60)

        client = Patient(Client(url, timeout=300, retries=0), given_up=told.append)
        adviser = Adviser(client, Formatter(most=3), Sampling(max_tokens=100), kill_after_two)
        agent = make_agent("beam", width=2, proposer=LLMProposer(adviser))
        result = agent.solve(problem, Budget(20), np.random.default_rng(0))
    assert result.counts.evaluations == 20 and result.evaluation is not None and result.evaluation.speedup > 1
    assert not any(one.completion.failure for one in asked[:2]) and asked[2].completion.failure
    assert len(told) == 1 and "3 requests in a row failed, connection: " in told[0]


def test_the_engine_in_this_process_keeps_to_the_permitted_answers(folder, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model = VLLM(folder, dtype="float32", enforce_eager=True, max_model_len=4096)
    answers = model.act_batch([TALK, TALK], Sampling(2, 1.0, 200, 3, Constraint(CHOICES, 2)))
    for answer in (answer for found in answers for answer in found):
        assert not answer.failure and set(answer.text.split("\n")) <= set(CHOICES)
    (seeded,) = zip(*model.act_batch([(Message(Role.USER, "x" * 3000),)] * 4, Sampling(seed=1)), strict=True)
    assert not any(answer.failure for answer in seeded)  # in steps of fewer tokens, an engine on a CPU dies of them
    (long,), (short,) = model.act_batch([(Message(Role.USER, "x" * 5000),), TALK], Sampling())
    assert model.window == 4096 and long.failure.startswith("window: ") and not short.failure
