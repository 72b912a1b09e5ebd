"""The commands that show and rewrite programs, called as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import leirgym
from envs.common.actions import parse_action
from envs.common.console import Verbs
from envs.leir_env import strategies, workloads
from envs.leir_env.parser import parse
from envs.leir_env.printer import show

SUM = "i:8 j:16\nA:f32[i,j] -> B:f32[i]\nL_i,j B[i] += A[i,j]\n"
OUT_OF_BOUNDS = "i:4\nA:f32[i] -> B:f32[i]\nL_i B[i] = A[i+1]\n"


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(Verbs(leirgym.VERBS), list(arguments), input=stdin)


def answer(*arguments: str, stdin: str = "") -> dict:
    result = run(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("verb", leirgym.VERBS)
def test_every_verb_of_the_table_explains_itself(verb):
    result = run(verb, "--help")
    assert result.exit_code == 0 and "Usage:" in result.stdout, result.output


def test_list_names_every_shipped_workload():
    listed = answer("list")["workloads"]
    assert [entry["name"] for entry in listed] == list(workloads.names())
    assert run("list", workloads.suites()[0]).stdout.count("\n") == 1 + len(workloads.names("basic"))
    assert listed[0]["signature"].startswith("A:f32[256,256] B:f32[256,256] -> C")


def test_list_of_an_unknown_suite_is_bad_input():
    assert run("list", "nosuch").exit_code == 2


@pytest.mark.parametrize("form", ["softmax", "leir://basic/softmax"])
def test_show_prints_the_canonical_text(form):
    assert run("show", form).stdout == show(workloads.load("softmax").program)


def test_show_reads_a_file_a_text_and_standard_input(tmp_path):
    file = tmp_path / "sum.leir"
    file.write_text(SUM)
    assert run("show", str(file)).stdout == run("show", SUM).stdout == run("show", "-", stdin=SUM).stdout == SUM
    assert answer("show", str(file))["name"] == "sum"


def test_show_lowers_and_compiles():
    assert "T.prim_func" in run("show", SUM, "--tir").stdout
    assert ".text" in run("show", SUM, "--source").stdout
    bound = SUM.replace("L_i,j", "B^bx_i L_j")
    assert "__global__" in run("show", bound, "--cuda").stdout


def test_show_cuda_of_a_program_without_bound_loops_maps_it_plainly():
    text = run("show", SUM, "--cuda").stdout
    assert "__global__" in text and "blockIdx.x" in text


BAD = {
    "out of bounds": (OUT_OF_BOUNDS, "line 3, column 12: A[i+1]: subscript 1 reaches 4, but A has extent 4"),
    "syntax": ("i:4\nA:f32[i] -> B:f32[i\n", "line 2, column"),
    "no output": ("i:4\nA:f32[i] ->\n", "the program has no output"),
    "dtype": ("i:4\nA:f33[i] -> B:f32[i]\nL_i B[i] = A[i]\n", "line 2"),
    "zero extent": ("i:0\nA:f32[i] -> B:f32[i]\nL_i B[i] = A[i]\n", "index i has extent 0"),
    "too long": ("i:4\n" * 100_000, "the limit is 200,000"),
    "too big": ("i,j:200000\nA:f32[i,j] -> B:f32[i,j]\nL_i,j B[i,j] = A[i,j]\n", "limit"),
    "empty": ("", "standard input"),
}


@pytest.mark.parametrize("verb", ["show", "legal", "optimize", "verify"])
@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_bad_program_is_a_located_error_and_never_a_traceback(verb, text, message):
    result = run(verb, "-", stdin=text)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: standard input: ") and message in result.stderr
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("softmx", "did you mean softmax?"),
        ("missing.leir", "missing.leir: No such file"),
        ("leir://nosuch/softmax", "nosuch"),
        ("", "''"),
    ],
)
def test_an_unknown_workload_is_bad_input(what, message):
    result = run("show", what)
    assert result.exit_code == 2 and message in result.stderr


def test_a_file_that_is_not_text_is_bad_input(tmp_path):
    file = tmp_path / "binary.leir"
    file.write_bytes(b"i:4\n\xff\xfe")
    result = run("show", str(file))
    assert result.exit_code == 2 and "byte 4 is not UTF-8" in result.stderr


def test_strategies_lists_the_registry_and_explains_one():
    assert [entry["name"] for entry in answer("strategies")["strategies"]] == list(strategies.REGISTRY)
    text = run("strategies", "loop_split").stdout
    assert text.startswith("loop_split(loop; factor)\n") and "Requires" in text and "Rewrite" in text


def test_an_unknown_strategy_is_bad_input():
    result = run("strategies", "loop_splt")
    assert result.exit_code == 2 and "did you mean loop_split?" in result.stderr


def test_legal_lists_what_the_registry_offers():
    expected = [str(action) for action in strategies.legal(parse(SUM))]
    assert answer("legal", SUM)["actions"] == run("legal", SUM).stdout.splitlines() == expected


def test_legal_says_why_an_action_is_refused_or_what_it_would_do():
    refused = run("legal", SUM, "--why", "loop_split(q; 4)")
    assert refused.exit_code == 1 and refused.stdout == "unknown_site: this program has no loop q\n"
    assert run("legal", SUM, "--why", "loop_split(q;").exit_code == 2
    assert answer("legal", SUM, "--why", "loop_split(j; 4)")["legal"] is True


def test_apply_prints_the_program_and_its_exactness():
    applied = answer("apply", SUM, "loop_split(j; 4)", "loop_reorder(i, jo)")
    program = parse(SUM)
    for action in ("loop_split(j; 4)", "loop_reorder(i, jo)"):
        program = strategies.apply(program, parse_action(action)).program
    assert applied["program"] == show(program)
    assert applied["exactness"] in ("exact", "reassociates")
    assert run("apply", SUM, "stop()").stdout == SUM


def test_apply_stops_at_a_refusal_with_exit_code_1():
    result = run("apply", SUM, "loop_split(j; 4)", "loop_split(q; 4)")
    assert result.exit_code == 1
    assert result.stdout == run("apply", SUM, "loop_split(j; 4)").stdout
    assert result.stderr == "action 2, loop_split(q; 4): unknown_site: this program has no loop q\n"


def test_commands_pipe_into_each_other():
    text = run("apply", "softmax", "loop_split(j; 8)").stdout
    assert answer("legal", "-", stdin=text)["actions"][0] == "stop()"


def test_verify_of_a_program_alone_is_static():
    assert run("verify", SUM).stdout == "well-formed\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "a trace is a JSON object"), ("{}", "format: expected"), ("[1", "a trace is a JSON object")],
)
@pytest.mark.parametrize("verb", ["replay", "verify"])
def test_a_malformed_trace_is_bad_input(verb, text, message, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(text)
    result = run(verb, str(file))
    assert result.exit_code == 2 and message in result.stderr


def test_a_missing_trace_is_bad_input(tmp_path):
    assert run("replay", str(tmp_path / "none.json")).exit_code == 2


def test_options_that_make_no_sense_are_usage_errors():
    assert run("optimize", SUM, "--budget", "0").exit_code == 2
    assert run("optimize", SUM, "--threads", "0").exit_code == 2
    assert run("optimize", SUM, "--agent", "oracle").exit_code == 2
    assert run("optimize", SUM, "--inputs", "f32[8]").exit_code == 2
    assert run("optimize", SUM, "--out", str(Path("no", "such", "folder", "t.json"))).exit_code == 2
    assert run("optimize", SUM, "--target", "cuda").exit_code == 3


def test_a_store_that_is_none_is_bad_input(tmp_path):
    file = tmp_path / "store.sqlite"
    file.write_text("something else entirely, and long enough to be taken for a header" * 20)
    result = run("optimize", SUM, "--store", str(file))
    assert result.exit_code == 2 and "store.sqlite" in result.stderr
