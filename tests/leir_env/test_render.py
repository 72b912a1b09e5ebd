"""An episode can be looked at: as text, in a terminal, as HTML."""

from __future__ import annotations

import pytest

from tests.leir_env.test_env import started


def test_ansi_marks_what_the_last_move_changed() -> None:
    env = started(render_mode="ansi", actions="text", max_steps=5)
    env.step("loop_parallelization(i.3)")
    text = env.render()
    assert text is not None
    title, *lines = text.splitlines()
    assert title.endswith("step 1 of 5: loop_parallelization(i.3)")
    assert lines[:6] == [
        "  i:8 j:32",
        "  A:f32[i,j] -> B:f32[i,j]; C,D:f32[i]",
        "  L_i,j C[i] max= A[i,j]",
        "  L_i,j D[i] += exp(A[i,j]-C[i])",
        "- L_i,j B[i,j] = exp(A[i,j]-C[i])/D[i]",
        "+ P_i L_j B[i,j] = exp(A[i,j]-C[i])/D[i]",
    ]
    assert lines[6].startswith("predicted: ") and "over the default schedule" in lines[6]


def test_ansi_shows_a_refusal_and_no_change() -> None:
    env = started(render_mode="ansi", actions="text")
    env.step("loop_parallelization(i)")
    env.step("loop_parallelization(i)")
    text = env.render()
    assert text is not None and "\n+ " not in text
    assert "refused: " in text and "kind: parallelise i: the loop is already of kind P" in text


def test_html_is_escaped_and_marks_the_changed_word() -> None:
    env = started(render_mode="html", actions="text")
    env.step("loop_parallelization(i.3)")
    fragment = env.render()
    assert fragment is not None
    assert "-&gt; B:f32[i,j]" in fragment and "->" not in fragment.replace("--&gt;", "")
    assert '<span style="background:#abf2bc">P_i L_j</span>' in fragment
    env.step("<script>")
    assert "<script>" not in (env.render() or "")


def test_human_writes_each_step_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    env = started(render_mode="human", actions="text")
    env.step("loop_parallelization(i)")
    assert env.render() is None
    assert "+ P_i L_j C[i] max= A[i,j]" in capsys.readouterr().out
