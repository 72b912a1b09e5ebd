"""Tokens of programs: the tokenizer, the forms, the sums, and what is said when a package is missing."""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import leirgym
from envs.common.console import Missing, Verbs
from envs.leir_env import tokens, workloads
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.tokens import FORMS, Count, by_suite, count, share, tokenizer
from tests.leir_env.test_steptp import EXAMPLES

needs_tiktoken = pytest.mark.skipif(importlib.util.find_spec("tiktoken") is None, reason="tiktoken is not installed")
needs_qwen = pytest.mark.skipif(
    importlib.util.find_spec("tiktoken") is None or importlib.util.find_spec("dashscope") is None,
    reason="tiktoken or dashscope is not installed",
)


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A vocabulary of single bytes and of the pair `_i`."""
    entries = [bytes([byte]) for byte in range(256)] + [b"_i"]
    file = tmp_path / "letters.tiktoken"
    file.write_bytes(b"\n".join(base64.b64encode(entry) + b" %d" % rank for rank, entry in enumerate(entries)))
    return file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(Verbs(leirgym.VERBS), ["tokens", *arguments])


@needs_qwen
@pytest.mark.parametrize(
    ("name", "wanted"),
    [("relu", 45), ("gelu", 64), ("matmul", 75), ("conv2d", 115), ("max_pool", 190), ("softmax", 174), ("cumsum", 72)],
)
def test_the_published_programs_cost_what_was_measured_for_step_tp(name, wanted):
    assert tokenizer()(EXAMPLES[name].text) == wanted


@needs_tiktoken
def test_a_vocabulary_merges_its_pairs_only(letters):
    assert tokenizer(letters)("L_i,j") == len("L_i,j") - 1


@needs_qwen
def test_every_form_of_a_shipped_workload_is_counted_with_its_declarations():
    program = workloads.load("matmul_256").program
    counter = tokenizer()
    found, missing = count("matmul_256", "basic", program, counter)
    assert not missing and set(found.tokens) == set(FORMS)
    assert found.tokens["leir"] == counter(show(program)) > counter("L_i,j,k C[i,j] += A[i,k] B[k,j]\n")
    assert found.tokens["leir"] < found.tokens["tir"] < found.tokens["blocks"] < found.tokens["cuda"]
    assert found.tokens["kernels"] < found.tokens["cuda"]


def test_the_forms_stand_for_the_whole_program():
    program = parse("i:8 j:16\nA:f32[i,j] -> C:f32[i,j]; D:f32[i]\nL_i,j D[i] += exp(A[i,j])\nL_i,j C[i,j] = D[i]\n")
    texts = {name: form.text(program) for name, form in FORMS.items()}
    for name in ("tir", "blocks"):
        assert "pragma" not in texts[name] and "Metadata" not in texts[name]
        assert all(word in texts[name] for word in ('A: T.Buffer((8, 16), "float32")', "T.exp", "16", "D"))
    assert "T.sblock" in texts["blocks"] and "T.init" in texts["blocks"] and "T.sblock" not in texts["tir"]
    assert texts["cuda"].endswith(texts["kernels"]) and "#include" in texts["cuda"]
    assert "#include" not in texts["kernels"] and texts["kernels"].count("blockIdx.x") >= 2


def test_a_form_that_a_program_lacks_is_said_and_left_out_of_the_ratios():
    tiled = parse("i:4 j:8\nA:f32[i,j] -> C:f32[i,j]\nL_i V_j C[i,j] = A[i,j]\n")
    found, missing = count("tiled", "mine", tiled, len)
    assert "blocks" not in found.tokens and missing == (
        "tiled has no form blocks: scheduled: loop j is scheduled: it is not serial, or declares tensors",
    )
    assert share([found], "blocks") is None and share([found], "tir") is not None


def test_a_share_is_the_ratio_of_sums_over_the_workloads_that_have_the_form():
    counts = [
        Count("a", "x", {"leir": 10, "tir": 100}),
        Count("b", "y", {"leir": 30, "tir": 60}),
        Count("c", "y", {"leir": 9}),
    ]
    found = share(counts, "tir")
    assert found is not None and (found.workloads, found.leir, found.other) == (2, 40, 160)
    assert found.ratio == 0.25 and found.mean == pytest.approx(0.3)
    assert list(by_suite(counts)) == ["x", "y", "all"] and list(by_suite(counts[1:])) == ["y"]


@needs_tiktoken
def test_the_command_counts_a_suite_and_its_sums_add_up(letters):
    found = json.loads(run("patterns", "--vocabulary", str(letters), "--json").stdout)
    assert [each["name"] for each in found["workloads"]] == list(workloads.names("patterns"))
    assert {each["suite"] for each in found["workloads"]} == {"patterns"} and list(found["ratios"]) == ["patterns"]
    for form, ratio in found["ratios"]["patterns"].items():
        having = [each for each in found["workloads"] if form in each]
        assert ratio["workloads"] == len(having) > 20
        assert ratio["leir"] == sum(each["leir"] for each in having) and ratio["form"] == sum(e[form] for e in having)
        assert ratio["of_sums"] == ratio["leir"] / ratio["form"]


@needs_tiktoken
def test_a_report_states_its_command_every_workload_and_the_goals(letters, tmp_path):
    report = tmp_path / "docs" / "tokens.md"
    result = run("patterns", "--vocabulary", str(letters), "--report", str(report))
    assert result.exit_code == 0 and f"wrote {report}" in result.stderr
    text = report.read_text()
    assert "Printed by `leirgym tokens patterns --report docs/tokens.md`" in text and "| 0.22 |" in text
    assert all(f"| {name} |" in text for name in workloads.names("patterns"))
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert ("(tokens.png)" in text) == report.with_suffix(".png").is_file() == drawn


def test_without_tiktoken_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    result = run("patterns")
    assert result.exit_code == 3 and "pip install 'leirgym[tokens]'" in result.stderr


@needs_tiktoken
def test_without_dashscope_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tokens.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="dashscope, which is not installed"):
        tokenizer()


@needs_tiktoken
@pytest.mark.parametrize("content", [b"not a vocabulary", b"!!!! 1", b"\xff\xfe\x00"])
def test_a_file_that_is_no_vocabulary_is_bad_input(tmp_path, content):
    file = tmp_path / "other.tiktoken"
    file.write_bytes(content)
    assert run("patterns", "--vocabulary", str(file)).exit_code == 2


def test_an_unknown_suite_is_bad_input():
    assert run("nosuch").exit_code == 2
