"""Layouts: what is stored where, what is refused, and that the values stay the same."""

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.ir import Program
from envs.leir_env.key import key
from envs.leir_env.layout import Part, address, shape_of
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import Exactness, Refusal
from envs.leir_env.strategies.layouts import layouts, parse_layout
from envs.leir_env.tree import declarations
from envs.leir_env.verify import verify

MATMUL = "i:6 j:20 k:5\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\nL_i,j,k C[i,j] += A[i,k] B[k,j]\n"
HANDED_ON = "i:6 j:5\nA:f32[i,j] -> C:f32[i]; D:f32[j,i]\nL_i,j D[j,i] = exp(A[i,j])\nL_i,j C[i] += D[j,i]\n"


def apply(text: str | Program, action: str) -> Program:
    """The program after a legal EXACT action, which must verify, round-trip, and compute the same bit for bit."""
    before = parse(text) if isinstance(text, str) else text
    assert verify(before) == ()
    outcome = strategies.apply(before, parse_action(action))
    after = outcome.program
    assert outcome.exactness is Exactness.EXACT
    assert verify(after) == (), show(after)
    assert parse(show(after)) == after
    inputs = random_inputs(before, np.random.default_rng(1))
    expected, found = run(before, inputs), run(after, inputs)
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), show(after)
    return after


def refused(text: str | Program, action: str) -> Refusal:
    program = parse(text) if isinstance(text, str) else text
    assert verify(program, "cuda" if "B^" in show(program) else "llvm") == ()
    refusal = strategies.refusal(program, parse_action(action))
    assert refusal is not None, show(strategies.apply(program, parse_action(action)).program)
    return refusal


def test_an_input_is_copied_once_and_every_read_uses_the_copy() -> None:
    assert show(apply(MATMUL, "layout_transformation(B; swap_1_2)")) == (
        "j:20 k:5 i:6\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]; D:f32[j,k]\n"
        "L_j,k D[j,k] = B[k,j]\n"
        "L_i,j,k C[i,j] += A[i,k] D[j,k]\n"
    )


def test_panels_stand_one_after_another_with_a_padded_last_one() -> None:
    assert show(apply(MATMUL, "layout_transformation(B; panel_2_8)")) == (
        "jo:3 k:5 ji:8 i:6 j:20\nA:f32[i,k] B:f32[k,20] -> C:f32[i,j]; D:f32[jo,k,ji]\n"
        "L_jo,k,ji D[jo,k,ji] = B[k,8jo+ji] if 8jo+ji<20\n"
        "L_i,j,k C[i,j] += A[i,k] D[j//8,k,j%8]\n"
    )


def test_digits_of_a_tiled_loop_vanish() -> None:
    tiled = strategies.apply(parse(MATMUL), parse_action("loop_split(j; 4)")).program
    assert "+= A[i,k] D[jo,k,ji]" in show(apply(tiled, "layout_transformation(B; panel_2_4)"))


def test_an_output_is_written_in_the_new_layout_and_copied_back() -> None:
    assert show(apply(MATMUL, "layout_transformation(C; tile_1_4)")) == (
        "i:6 j:20 k:5 io:2 ii:4\nA:f32[i,k] B:f32[k,j] -> C:f32[6,j]; D:f32[io,j,ii]\n"
        "L_i,j,k D[i//4,j,i%4] += A[i,k] B[k,j]\n"
        "L_io,ii,j C[4io+ii,j] = D[io,j,ii] if 4io+ii<6\n"
    )


def test_an_intermediate_needs_no_copy() -> None:
    assert show(apply(HANDED_ON, "set_storage_layout(D; swap_1_2)")) == (
        "i:6 j:5\nA:f32[i,j] -> C:f32[i]; D:f32[i,j]\nL_i,j D[i,j] = exp(A[i,j])\nL_i,j C[i] += D[i,j]\n"
    )


def test_a_transposition_twice_is_the_program_itself() -> None:
    once = apply(HANDED_ON, "set_storage_layout(D; swap_1_2)")
    assert key(apply(once, "set_storage_layout(D; swap_1_2)")) == key(parse(HANDED_ON))


def test_a_temporary_of_an_inner_block_changes_in_its_block() -> None:
    text = (
        "h:3 i:4 j:6\nA:f32[h,i,j] -> C:f32[h,j]\n"
        "P_h [\n  D:f32.l[i,j]\n  L_i,j D[i,j] = exp(A[h,i,j])\n  L_j,i C[h,j] += D[i,j]\n]\n"
    )
    after = show(apply(text, "set_storage_layout(D; tile_1_3)"))
    assert "D:f32.l[2,j,3]" in after and "D[i//3,j,i%3] = exp" in after


def test_an_accumulated_intermediate_starts_as_before_and_what_pads_is_never_read() -> None:
    text = "i:5 j:7 k:3\nA:f32[i,k] B:f32[k,j] -> C:f32[i]; D:f32[i,j]\n"
    text += "L_i,k,j D[i,j] += A[i,k] B[k,j]\nL_i,j C[i] max= D[i,j]\n"
    for layout in ("swap_1_2", "tile_1_2", "panel_2_4", "tile_2_3", "panel_1_3"):
        apply(text, f"set_storage_layout(D; {layout})")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32", "i8", "bool"])
def test_any_dtype_is_stored_in_any_layout(dtype: str) -> None:
    for layout in ("swap_1_2", "tile_1_4", "panel_2_2"):
        value = "not A[i,j]" if dtype == "bool" else "-A[i,j]"
        text = f"i:6 j:5\nA:{dtype}[i,j] -> C:{dtype}[i,j]\nL_i,j C[i,j] = {value}\n"
        apply(text, f"layout_transformation(A; {layout})")
        apply(text, f"layout_transformation(C; {layout})")


def test_data_may_say_which_element_is_read_but_not_through_arithmetic_that_wraps() -> None:
    text = "i:6 j:4\nA:f32[9,j] M:i32[i] -> C:f32[i,j]\nL_i,j C[i,j] = 2.0*A[M[i],j]\n"
    for layout in ("swap_1_2", "tile_1_4", "panel_2_2"):
        apply(text, f"layout_transformation(A; {layout})")
    narrow = refused(text.replace("M:i32", "M:i8"), "layout_transformation(A; tile_1_4)")
    assert narrow.code == "structure" and "i8" in narrow.sentence
    apply(text.replace("M:i32", "M:i8"), "layout_transformation(A; swap_1_2)")


def test_a_table_of_subscripts_may_itself_be_stored_otherwise() -> None:
    text = "i:6 j:4\nA:f32[9] M:i64[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = 2.0*A[M[i,j]]\n"
    apply(text, "layout_transformation(M; panel_2_3)")


def test_shifted_reads_under_a_select_stay_inside() -> None:
    text = "i:3 j:8\nA:f32[i,j] -> C:f32[i,j]\nL_i V_j C[i,j] = select(j>=1,A[i,j-1],0)+select(j<7,A[i,j+1],0)\n"
    after = apply(text, "layout_transformation(A; panel_2_3)")
    inputs = random_inputs(after, np.random.default_rng(2))
    assert build(after).run(inputs)["C"].tobytes() == run(after, inputs)["C"].tobytes()


def test_a_guard_that_keeps_subscripts_inside_still_does() -> None:
    text = "io:3 ii:5 j:4\nA:f32[12,j] -> C:f32[12,j]\nL_io,ii,j C[5io+ii,j] = 2.0*A[5io+ii,j] if 5io+ii<12\n"
    for layout in ("tile_1_4", "tile_1_5", "panel_2_3", "tile_1_7"):
        apply(text, f"layout_transformation(A; {layout})")
        apply(text, f"layout_transformation(C; {layout})")


def test_a_recurrence_keeps_its_order() -> None:
    text = "i:8 j:3\nA:f32[i,j] -> C:f32[j]; D:f32[i,j]\n"
    text += "L_i,j D[i,j] = A[i,j]+select(i>=1,D[i-1,j],0)\nL_j C[j] = D[7,j]\n"
    for layout in ("tile_1_3", "swap_1_2", "panel_2_2"):
        apply(text, f"set_storage_layout(D; {layout})")


def test_parallel_loops_over_a_tiled_dimension_keep_their_promise() -> None:
    text = "i:12 j:5\nA:f32[i,j] -> C:f32[i]; D:f32[i,j]\nP_i [\n  L_j D[i,j] = exp(A[i,j])\n"
    text += "  L_j C[i] += D[i,j] D[i,j]\n]\n"
    for layout in ("tile_1_4", "panel_2_2", "swap_1_2", "tile_1_5"):
        apply(text, f"set_storage_layout(D; {layout})")


def test_several_equations_may_write_an_output() -> None:
    text = "i:4 j:3\nA:f32[i,j] -> C:f32[8,j]\nL_i,j C[i,j] = A[i,j]\nL_i,j C[i+4,j] = 2.0*C[3-i,j]\n"
    for layout in ("tile_1_3", "swap_1_2"):
        apply(text, f"layout_transformation(C; {layout})")


def test_an_output_that_data_may_leave_unwritten_is_not_copied_back() -> None:
    text = "i:4 j:3\nA:f32[i,j] M:i32[i] -> C:f32[i,j]\nL_i,j C[M[i],j] = 2.0*A[i,j]\n"
    assert refused(text, "layout_transformation(C; swap_1_2)").code == "structure"
    guarded = "i:4 j:3\nA:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = 2.0*A[i,j] if A[i,j]>0.0\n"
    assert refused(guarded, "layout_transformation(C; swap_1_2)").code == "structure"
    apply(guarded, "layout_transformation(A; swap_1_2)")
    started = guarded.replace("C[i,j] = ", "C[i,j] max= ")
    apply(started, "layout_transformation(C; swap_1_2)")


@pytest.mark.parametrize(
    ("action", "code"),
    [
        ("layout_transformation(D; swap_1_2)", "scope"),
        ("set_storage_layout(A; swap_1_2)", "scope"),
        ("set_storage_layout(D; swap_2_1)", "wrong_parameter"),
        ("set_storage_layout(D; swap_1_3)", "wrong_parameter"),
        ("set_storage_layout(D; swap_1_1)", "wrong_parameter"),
        ("set_storage_layout(D; tile_3_2)", "wrong_parameter"),
        ("set_storage_layout(D; tile_0_2)", "wrong_parameter"),
        ("set_storage_layout(D; rows)", "wrong_parameter"),
        ("set_storage_layout(D; tile_1_1)", "extent"),
        ("set_storage_layout(D; tile_1_5)", "extent"),
        ("set_storage_layout(D; tile_2_3)", "no_effect"),
        ("layout_transformation(C; tile_1_2)", "no_effect"),
    ],
)
def test_what_does_not_fit_is_refused(action: str, code: str) -> None:
    assert refused(HANDED_ON, action).code == code


def test_tiles_of_the_last_dimension_change_nothing_unless_they_pad_its_rows() -> None:
    assert refused(MATMUL, "layout_transformation(B; tile_2_5)").code == "no_effect"
    apply(MATMUL, "layout_transformation(B; tile_2_6)")
    tall = MATMUL.replace("k:5", "k:1")
    assert refused(tall, "layout_transformation(B; tile_2_6)").code == "no_effect"


def test_what_is_only_copied_is_not_copied_once_more() -> None:
    copied = apply(MATMUL, "layout_transformation(B; swap_1_2)")
    assert refused(copied, "layout_transformation(B; panel_2_8)").code == "no_effect"
    copied = apply(MATMUL, "layout_transformation(C; swap_1_2)")
    assert refused(copied, "layout_transformation(C; swap_1_2)").code == "no_effect"


def test_padding_beyond_the_limits_is_refused() -> None:
    large = "i:65536 j:1024\nA:f32[i,j] -> C:f32[i]; D:f32[i,j]\nL_i,j D[i,j] = exp(A[i,j])\nL_i,j C[i] += D[i,j]\n"
    refusal = refused(large, "set_storage_layout(D; tile_1_60)")
    assert refusal.code == "size" and "268,615,680" in refusal.sentence


def test_on_a_gpu_the_copy_is_a_kernel_of_its_own() -> None:
    text = "i:6 j:20\nA:f32[i,j] -> C:f32[j,i]\nB^bx_i B^tx_j C[j,i] = exp(A[i,j])\n"
    after = strategies.apply(parse(text), parse_action("layout_transformation(C; swap_1_2)")).program
    assert verify(after, "cuda") == ()
    assert "B^bx_j B^tx_i C[j,i] = D[i,j]" in show(after)


def test_a_shared_tensor_is_padded_only_within_the_limit_of_a_block() -> None:
    text = (
        "b:2 i:110 j:109\nA:f32[b,i,j] -> C:f32[b,i,j]\n"
        "B^bx_b [\n  D:f32.s[j,i]\n  B^tx_j L_i D[j,i] = A[b,i,j]\n  B^tx_j L_i C[b,i,j] = exp(D[j,i])\n]\n"
    )
    assert refused(text, "set_storage_layout(D; tile_2_60)").code == "size"


def test_a_layout_is_a_bijection_onto_its_padded_shape() -> None:
    tensor, _ = declarations(parse(MATMUL))["B"]
    for text in (*layouts(tensor), "tile_1_2", "tile_2_7", "panel_1_3", "panel_2_3"):
        layout = parse_layout(text, tensor)
        assert not isinstance(layout, Refusal)
        access = parse(MATMUL).body[0].block.body[0].block.body[0].block.body[0].value.args[1]  # type: ignore[union-attr]
        places = {address(access, tensor.shape, layout, {"k": k, "j": j}) for k in range(5) for j in range(20)}
        assert len(places) == tensor.size and max(places) < np.prod(shape_of(layout, tensor.shape))


def test_the_menu_is_short_and_starts_with_transpositions() -> None:
    tensor, _ = declarations(parse("i,j,k:64\nA:f32[i,j,k] -> C:f32\nL_i,j,k C += A[i,j,k]\n"))["A"]
    menu = list(layouts(tensor))
    assert menu[:2] == ["swap_1_3", "swap_2_3"] and len(menu) == 11
    assert Part(2, 16) == parse_layout("panel_3_16", tensor)[0]  # type: ignore[index]


def test_the_rationale_tells_strides_before_and_after() -> None:
    reason = strategies.rationale(parse(MATMUL), parse_action("layout_transformation(B; swap_1_2)"))
    assert reason == (
        "Store B (400 bytes, copied once) as 20x5 by swap_1_2, so that a step of k moves by 1 element in place of 20."
    )


@pytest.mark.parametrize(
    "action",
    ["layout_transformation(B; panel_2_8)", "layout_transformation(C; tile_1_4)", "layout_transformation(A; swap_1_2)"],
)
def test_the_kernel_computes_what_the_interpreter_does(action: str) -> None:
    after = apply(MATMUL, action)
    inputs = random_inputs(after, np.random.default_rng(3))
    np.testing.assert_allclose(build(after).run(inputs)["C"], run(after, inputs)["C"], rtol=1e-5, atol=1e-5)
