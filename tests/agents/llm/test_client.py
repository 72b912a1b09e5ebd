"""The client of OpenAI-compatible servers, against a server that says what it is told to say."""

from __future__ import annotations

import json
import re
import socket
import threading

import pytest

from agents.llm.client import Client, Structured, as_regex, lines, schema
from agents.llm.policy import Constraint, Message, Role, Sampling, Unavailable
from tests.agents.llm.scripted_server import Raw, completion, serving

TALK = (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Which?"))
ONE = Constraint(("1", "2"))
GREEDY = Sampling(temperature=0.0)


def client(server, **settings) -> Client:
    return Client(server.url, **{"retries": 0, "timeout": 5.0, **settings})


def test_a_conversation_is_asked_and_answered():
    with serving(lambda body: ["2"] * body["n"]) as server:
        asked = client(server, key="secret")
        ((first, second),) = asked.act_batch([TALK], Sampling(2, 0.5, 33, seed=4))
    (body,) = server.requests
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which?"}]
    assert (body["model"], body["n"], body["temperature"], body["max_tokens"], body["seed"]) == ("tiny", 2, 0.5, 33, 4)
    assert (first.text, second.text, first.failure) == ("2", "2", "")
    assert (first.prompt_tokens, first.completion_tokens, second.prompt_tokens) == (11, 7, 0)
    assert first.seconds > 0 and server.keys == ["Bearer secret"]
    assert asked.name == f"{server.url}#tiny"


def test_a_batch_is_asked_side_by_side_and_answered_in_order():
    with serving(
        lambda body: Raw(json.dumps(completion([body["messages"][0]["content"]])).encode(), delay=0.05)
    ) as server:
        talks = [(Message(Role.USER, str(n)),) for n in range(8)]
        answers = client(server).act_batch(talks, GREEDY)
    assert [answer.text for (answer,) in answers] == list("01234567")


def test_a_vllm_server_is_told_the_legal_answers_in_its_own_way():
    with serving(lambda body: ["1"]) as server:
        client(server).act_batch([TALK], Sampling(constraint=ONE))
        client(server).act_batch([TALK], Sampling(constraint=Constraint(("1", "2"), 3)))
    assert server.requests[0]["structured_outputs"] == {"choice": ["1", "2"]}
    assert server.requests[1]["structured_outputs"] == {"regex": "(1|2)(\\n(1|2)){0,2}"}
    assert all("response_format" not in body for body in server.requests)


def test_other_servers_are_told_nothing_unless_the_user_says_how():
    with serving(lambda body: ["1"], owner="llamacpp") as server:
        assert client(server).structured is Structured.NONE
        client(server).act_batch([TALK], Sampling(constraint=ONE))
    assert not {"structured_outputs", "response_format"} & set(server.requests[0])


def test_a_json_schema_is_asked_for_and_read_back_as_lines():
    with serving(lambda body: ['{"answers": ["2", "1"]}'], owner="other") as server:
        asked = client(server, structured=Structured.SCHEMA)
        ((answer,),) = asked.act_batch([TALK], Sampling(constraint=Constraint(("1", "2"), 2)))
    form = server.requests[0]["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["schema"] == schema(Constraint(("1", "2"), 2))
    assert answer.text == "2\n1"


@pytest.mark.parametrize("text", ["2", "[]", '{"answers": 3}', "{", "[" * 40_000, '"' + "x" * 60_000 + '"'])
def test_an_answer_that_is_not_of_the_schema_stays_as_it_is(text):
    assert lines(text) == text


def test_the_regular_expression_matches_the_permitted_answers_only():
    pattern = as_regex(Constraint(("loop_split(i.2; 8)", "f(a, b; x-1+2*3)"), 2))
    for answer in ("loop_split(i.2; 8)", "f(a, b; x-1+2*3)\nloop_split(i.2; 8)"):
        assert re.fullmatch(pattern, answer)
    for answer in ("loop_split(ix2; 8)", "", "f(a, b; x-1+2*3)\n", "\n".join(["loop_split(i.2; 8)"] * 3)):
        assert not re.fullmatch(pattern, answer)


GARBAGE = {
    "no json": (Raw(b"it works!"), "malformed"),
    "html": (Raw(b"<html>", kind="text/html"), "malformed"),
    "nothing": (Raw(b""), "malformed"),
    "a list": (Raw(b"[]"), "malformed"),
    "no choices": (Raw(b'{"choices": null}'), "malformed"),
    "no message": (Raw(b'{"choices": [{}]}'), "malformed"),
    "odd usage": (
        Raw(b'{"choices": [{"message": {"content": "1"}}], "usage": {"prompt_tokens": "many"}}'),
        "malformed",
    ),
    "infinite usage": (Raw(b'{"choices": [{"message": {"content": "1"}}], "usage": {"prompt_tokens": 1e999}}'), "mal"),
    "deep": (Raw(b"[" * 100_000), "malformed"),
    "bytes": (Raw(b"\xff\xfe\x00"), "malformed"),
    "too many": (Raw(json.dumps(completion(["1", "2"])).encode()), "malformed: 1 answers were asked for, 2 came"),
    "too long": (Raw(b'"' + b"x" * 9_000_000 + b'"'), "size: a response has at most 8,000,000 characters"),
    "cut short": (Raw(b'{"choices"', cut=True), "connection"),
    "bad request": (Raw(b'{"error": {"message": "no such grammar"}}', 400), "status: 400"),
    "overloaded": (Raw(b"x" * 100_000, 503), "status: 503"),
    "slow": (Raw(b"{}", delay=1.0), "timeout: no answer after"),
}


@pytest.mark.parametrize(("response", "failure"), GARBAGE.values(), ids=GARBAGE)
def test_a_bad_response_is_a_failure_with_a_code_and_a_short_sentence(response, failure):
    with serving(lambda body: response) as server:
        ((answer,),) = client(server, timeout=0.3 if response.delay else 20.0).act_batch([TALK], GREEDY)
    assert answer.text == "" and answer.failure.startswith(failure) and len(answer.failure) < 400


def test_null_content_is_an_empty_answer_and_missing_usage_is_estimated():
    with serving(lambda body: Raw(b'{"choices": [{"message": {"content": null}}]}')) as server:
        ((answer,),) = client(server).act_batch([TALK], GREEDY)
    assert (answer.text, answer.failure) == ("", "") and answer.prompt_tokens > 0


def test_a_server_that_dies_is_a_failure():
    with serving(lambda body: ["1"]) as server:
        asked = client(server)
    ((answer,),) = asked.act_batch([TALK], GREEDY)
    assert answer.failure.startswith("connection: ")


def test_what_may_be_transient_is_tried_again():
    answers = iter([Raw(b"{}", 503), ["2"]])
    with serving(lambda body: next(answers)) as server:
        ((answer,),) = client(server, retries=1).act_batch([TALK], GREEDY)
    assert answer.text == "2" and len(server.requests) == 2


def test_all_tries_share_one_time_out():
    with serving(lambda body: Raw(b"{}", delay=1.0)) as server:
        ((answer,),) = client(server, retries=3, timeout=0.3).act_batch([TALK], GREEDY)
    assert answer.failure.startswith("timeout: no answer after ") and len(server.requests) == 1
    with serving(lambda body: Raw(b"{}", 503, headers={"retry-after": "31"})) as server:
        ((answer,),) = client(server, retries=9, timeout=30.0).act_batch([TALK], GREEDY)
    assert answer.failure.startswith("status: 503") and len(server.requests) == 1


def test_a_server_says_when_to_ask_again(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr("agents.llm.client.time.sleep", pauses.append)
    answers = iter([Raw(b"{}", 429, headers={"retry-after": "3"}), Raw(b"{}", 429), Raw(b"{}", 503), ["2"]])
    with serving(lambda body: next(answers)) as server:
        ((answer,),) = client(server, retries=3, timeout=30.0).act_batch([TALK], GREEDY)
    assert answer.text == "2" and [pause for pause in pauses if pause] == [3.0, 1.0, 2.0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_starts_late_is_waited_for():
    port, opened = free_port(), []

    def open_client():
        opened.append(Client(f"http://127.0.0.1:{port}/v1", wait=60))

    waiting = threading.Thread(target=open_client)
    waiting.start()
    waiting.join(0.7)
    assert waiting.is_alive() and not opened
    with serving(lambda body: ["2"], port) as server:
        waiting.join(60)
        ((answer,),) = opened[0].act_batch([TALK], GREEDY)
    assert answer.text == "2" and opened[0].name == f"{server.url}#tiny"
    with pytest.raises(Unavailable, match=f"http://127.0.0.1:{port}/v1"):
        Client(f"http://127.0.0.1:{port}/v1", wait=0.2)


def test_the_tokens_that_a_model_reads_are_learnt_from_the_list():
    for window, known in ((2048, 2048), (None, None), ("2048", None), (0, None)):
        with serving(lambda body: ["1"], window=window) as server:
            assert client(server).window == known


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 1024 tokens. However, you requested 4363 tokens."},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        {"message": "too long", "code": "context_length_exceeded"},
    ],
)
def test_a_prompt_that_does_not_fit_has_a_code_of_its_own(error):
    with serving(lambda body: Raw(json.dumps({"error": error}).encode(), 400)) as server:
        ((answer,),) = client(server).act_batch([TALK], GREEDY)
    assert answer.failure.startswith("window: 400, ") and len(server.requests) == 1


def test_a_server_or_model_that_is_not_there_is_named():
    with serving(lambda body: ["1"]) as server:
        with pytest.raises(Unavailable, match=r"serves no model large; it serves tiny"):
            client(server, model="large")
        url = server.url
    with pytest.raises(Unavailable, match=re.escape(url)):
        Client(url, retries=0)


@pytest.mark.parametrize("listed", [Raw(b"no", 404), Raw(b"no"), Raw(b'{"data": [3]}'), Raw(b'{"data": 3}')])
def test_a_server_that_lists_no_models_must_be_told_one(listed):
    with serving(lambda body: ["1"], listed=listed) as server:
        with pytest.raises(Unavailable, match=r"lists no models: .*; name one"):
            client(server)
        asked = client(server, model="mine")
        asked.act_batch([TALK], GREEDY)
    assert server.requests[0]["model"] == "mine" and asked.structured is Structured.NONE


def test_a_server_without_models_says_so():
    with serving(lambda body: ["1"], models=()) as server, pytest.raises(Unavailable, match=r"serves no model$"):
        client(server)
