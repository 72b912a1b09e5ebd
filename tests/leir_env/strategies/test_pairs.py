"""Joining two convolutions: the geometry, the seam, and what is left alone."""

import numpy as np
import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.build import build
from envs.leir_env.generate import random_inputs
from envs.leir_env.interp import run
from envs.leir_env.ir import Program
from envs.leir_env.parser import parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY, Exactness
from envs.leir_env.verify import verify

NAME = "partially_equivalent_then_correct"


def line(
    width: int = 8,
    kernel: int = 3,
    left: int = 1,
    right: int = 1,
    stride: int = 1,
    dilation: int = 1,
    fill: str = "0",
    dtype: str = "f32",
) -> str:
    """Two convolutions along a line."""
    padded = width + left + right
    columns = (padded - dilation * (kernel - 1) - 1) // stride + 1
    shifted = f"y-{left}" if left else "y"
    window = f"{stride if stride > 1 else ''}x+{dilation if dilation > 1 else ''}k"

    def stages(padded_name: str, source: str, output: str) -> str:
        return (
            f"L_c,y {padded_name}[c,y] = select(y>={left} and y<{left + width},{source}[c,{shifted}],{fill})\n"
            f"L_o,x,c,k {output}[o,x] += {padded_name}[c,{window}] W[o,c,k]\n"
        )

    return (
        f"c:2 o:3 x:{columns} y:{padded} k:{kernel}\n"
        f"A,B:{dtype}[c,{width}] | W:{dtype}[o,c,k] -> C,D:{dtype}[o,{columns}]; E,F:{dtype}[c,{padded}]\n"
        f"{stages('E', 'A', 'C')}{stages('F', 'B', 'D')}"
    )


def joined(text: str, axis: int = 2) -> Program:
    """The joined program, which must be well formed and compute the same bit for bit."""
    before = parse(text)
    assert verify(before) == (), verify(before)
    outcome = strategies.apply(before, parse_action(f"{NAME}(C, D; {axis})"))
    after = outcome.program
    assert outcome.exactness is Exactness.EXACT
    assert verify(after) == (), show(after)
    assert parse(show(after)) == after
    inputs = random_inputs(before, np.random.default_rng(0))
    expected, found = run(before, inputs), run(after, inputs)
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), show(after)
    return after


def refused(text: str, axis: int = 2, site: str = "C, D") -> strategies.Refusal:
    program = parse(text)
    assert verify(program) == (), verify(program)
    found = strategies.refusal(program, parse_action(f"{NAME}({site}; {axis})"))
    assert found is not None, show(strategies.apply(program, parse_action(f"{NAME}({site}; {axis})")).program)
    return found


def test_inputs_are_joined_convolved_once_split_and_corrected_at_the_seam() -> None:
    assert show(joined(line())) == (
        "c:2 y2:18 o,k:3 x2:16 x3:7\n"
        "A,B:f32[c,8] | W:f32[o,c,k] -> C,D:f32[o,8]; G:f32[c,y2] H:f32[o,x2]\n"
        "L_c,y2 G[c,y2] = select(y2>=1 and y2<9,A[c,y2-1],select(y2>=9 and y2<17,B[c,y2-9],0))\n"
        "L_o,x2,c,k H[o,x2] += G[c,x2+k] W[o,c,k]\n"
        "L_o,x3 C[o,x3] = H[o,x3]\n"
        "L_o C[o,7] = 0\n"
        "L_o,c,k C[o,7] += select(k+7<9,A[c,k+6],0)*W[o,c,k]\n"
        "L_o,x3 D[o,x3+1] = H[o,x3+9]\n"
        "L_o D[o,0] = 0\n"
        "L_o,c,k D[o,0] += select(k>=1,B[c,k-1],0)*W[o,c,k]\n"
    )


@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel": 5, "left": 2, "right": 2},
        {"kernel": 5, "left": 4, "right": 4},
        {"kernel": 3, "left": 2, "right": 0},
        {"kernel": 3, "left": 0, "right": 2},
        {"kernel": 1, "left": 1, "right": 1},
        {"stride": 2},
        {"stride": 4, "kernel": 5, "left": 2, "right": 1},
        {"dilation": 2, "left": 2, "right": 2},
        {"width": 9, "stride": 3, "dilation": 2, "left": 2, "right": 2},
        {"fill": "1.5"},
        {"dtype": "f16"},
        {"dtype": "f64"},
    ],
)
def test_any_geometry_gives_the_same_bits(geometry: dict[str, object]) -> None:
    joined(line(**geometry))  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [2, 3])
def test_images_are_joined_along_either_axis(axis: int) -> None:
    joined(PATTERNS["paired_images"].text(c=2, o=3, h=3, w=4, dtype="f32"), axis)


def test_padding_before_convolving_and_reductions_outside_are_fine() -> None:
    lines = line().splitlines(keepends=True)
    joined("".join((*lines[:2], lines[2], lines[4], lines[3], lines[5])))
    joined(line().replace("L_o,x,c,k", "L_c,k,x,o"))
    joined(line().replace("L_o,x,c,k", "P_o L_x,c,k"))


def test_infinite_padding_spreads_as_before() -> None:
    before = parse(line(fill="inf"))
    after = strategies.apply(before, parse_action(f"{NAME}(C, D; 2)")).program
    inputs = random_inputs(before, np.random.default_rng(0))
    expected, found = run(before, inputs), run(after, inputs)
    assert not np.isfinite(expected["C"][:, 0]).any()
    np.testing.assert_array_equal(found["C"], expected["C"])
    np.testing.assert_array_equal(found["D"], expected["D"])


BETWEEN = line().replace("-> C,D:f32[o,8]", "-> C,D,G:f32[o,8]")


@pytest.mark.parametrize(
    "text, code",
    [
        (line(width=7, stride=2), "extent"),
        (line(left=0, right=0), "no_effect"),
        (line(width=2, kernel=5, left=2, right=2), "size"),
        (line().replace("D[o,x] += F[c,x+k] W[o,c,k]", "D[o,x] += F[c,x+k] W[o,c,2-k]"), "structure"),
        (line().replace("y>=1 and y<9,B[c,y-1]", "y>=2 and y<10,B[c,y-2]"), "structure"),
        (line().replace("y>=1 and y<9,B[c,y-1],0", "y>=1 and y<9,B[c,y-1],1"), "structure"),
        (line().replace("y>=1 and y<9", "y>=2 and y<9"), "structure"),
        (line().replace("E[c,x+k]", "E[c,9-x-k]").replace("F[c,x+k]", "F[c,9-x-k]"), "structure"),
        (line().replace("W[o,c,k]", "(W[o,c,k]+x)"), "structure"),
        (line().replace("D[o,x] +=", "D[o,x] max="), "structure"),
        (line().replace("L_o,x,c,k", "L_o V_x L_c,k"), "kind"),
        (line().replace("; E,F:f32[c,10]", " E:f32[c,10]; F:f32[c,10]"), "scope"),
        (BETWEEN.replace("L_c,y F", "L_o,x G[o,x] = C[o,x]\nL_c,y F"), "dependence"),
        (line().replace("c:2 o:3", "c,o:2").replace("B[c,y-1]", "C[c,y-1]"), "dependence"),
    ],
)  # fmt: skip
def test_what_would_change_the_result_is_refused(text: str, code: str) -> None:
    assert refused(text).code == code


def test_the_axis_and_the_outputs_are_checked() -> None:
    assert refused(line(), axis=3).code == "structure"
    assert refused(line(), axis=1).code == "structure"
    assert refused(line(), site="C, C").code == "structure"
    assert refused(line(), site="E, F").code == "structure"
    assert refused(line(), site="A, D").code == "structure"


def test_the_menu_names_the_axes_along_which_windows_slide() -> None:
    program = parse(PATTERNS["paired_images"].text())
    assert [args for _, args in REGISTRY[NAME].candidates(program)] == [("2",), ("3",)]
    assert list(REGISTRY[NAME].candidates(parse(PATTERNS["softmax_rows"].text()))) == []


def test_the_kernel_computes_it() -> None:
    before = parse(PATTERNS["paired_convolutions"].text(c=3, o=4, n=11, dtype="f32"))
    after = joined(show(before))
    inputs = random_inputs(before, np.random.default_rng(1))
    expected, found = build(before).run(inputs), build(after).run(inputs)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)
