"""Each rule of `verify`: what it refuses, in which words, and what it lets pass."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.leir_env.generate import random_program
from envs.leir_env.ir import (
    Access,
    Assign,
    Axis,
    Block,
    Call,
    Const,
    DType,
    Equation,
    Expr,
    Index,
    Kind,
    Loop,
    Program,
    Role,
    Scope,
    Tensor,
)
from envs.leir_env.legality import starts
from envs.leir_env.parser import ParseError, parse
from envs.leir_env.proofs import undefined
from envs.leir_env.types import type_problems
from envs.leir_env.verify import RULES, VerifyError, check, load, verify
from tests.leir_env.nests import SETTINGS, instances, programs

GOOD = """\
i:16 j:64
A:f32[i,j] -> C:f32[i,j]; D,E:f32[i]
P_i [
  L_j D[i] max= A[i,j]
  L_j E[i] += exp(A[i,j]-D[i])
  V_j C[i,j] = exp(A[i,j]-D[i])/E[i]
]
"""


def found(text: str, target: str = "llvm") -> list[tuple[str, str]]:
    return [(problem.code, problem.sentence) for problem in verify(parse(text), target)]


def test_a_softmax_with_parallel_rows_and_vector_columns_is_well_formed() -> None:
    assert verify(parse(GOOD)) == ()
    assert check(parse(GOOD)) == parse(GOOD) == load(GOOD)


# Rule, what it refuses, the sentence, and the smallest change that mends it (old, new).
CASES: list[tuple[str, str, str, tuple[str, str]]] = [
    (
        "scope",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]+D[i]\n",
        "C[i] = A[i]+D[i]: D is not declared",
        ("D[i]", "A[i]"),
    ),
    (
        "scope",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i [\n  D:f32\n  D = A[i]\n  C[i] = D\n]\nC[0] = D\n",
        "C[0] = D: D is declared in another block",
        ("C[0] = D", "C[0] = A[0]"),
    ),
    (
        "scope",
        "i:4\nA:f32[i,4] -> C:f32[i]\nL_i C[i] = A[i]\n",
        "A[i] has 1 subscripts, but A has 2 dimensions",
        ("A[i]", "A[i,0]"),
    ),
    (
        "role",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i [\n  A[i] = 1.0\n  C[i] = A[i]\n]\n",
        "A[i] = 1.0 writes the input A",
        ("A[i] = 1.0", "C[i] = 1.0"),
    ),
    (
        "role",
        "i:4\nA:f32[i] | B:f32[i] -> C:f32[i]\nL_i [\n  B[i] += 1.0\n  C[i] = A[i]+B[i]\n]\n",
        "B[i] += 1.0 writes the parameter B",
        ("B[i] += 1.0", "C[i] = 1.0"),
    ),
    (
        "type",
        "i:4\nA:f16[i] -> C:f32[i]\nL_i C[i] = A[i]\n",
        "C is f32, but the right side is f16; cast it",
        ("= A[i]", "= f32(A[i])"),
    ),
    (
        "type",
        "i:4\nA:f16[i] B:f32[i] -> C:f32[i]\nL_i C[i] = A[i]*B[i]\n",
        "A[i] B[i]: f16 meets f32; cast one of them",
        ("A[i]*", "f32(A[i])*"),
    ),
    (
        "type",
        "i:4\nI:i32[i] -> C:i32[i]\nL_i C[i] = I[i]*0.5\n",
        "I[i]*0.5: i32 meets a fraction; cast one of them",
        ("0.5", "2"),
    ),
    (
        "type",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[A[i]]\n",
        "A[A[i]]: subscript 1 is f32, but a subscript is an integer",
        ("A[A[i]]", "A[i]"),
    ),
    (
        "type",
        "i:4\nI:i32[i] -> C:i32[i]\nL_i C[i] = exp(I[i])\n",
        "exp(I[i]): exp takes floats, not i32",
        ("exp", "abs"),
    ),
    (
        "type",
        "i:4\nI:i32[i] -> C:i32[i]\nL_i C[i] = I[i]/2\n",
        "I[i]/2: / takes floats, not i32",
        ("/2", "//2"),
    ),
    (
        "type",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i]%2\n",
        "A[i]%2: % takes integers, not f32",
        ("A[i]%2", "i%2"),
    ),
    (
        "type",
        "i:4\nA:f32[i] -> C:bool[i]\nL_i C[i] = A[i] and i<2\n",
        "A[i] and i<2: and takes conditions, not f32",
        ("A[i] and", "A[i]>0 and"),
    ),
    (
        "type",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] += A[i] if i\n",
        "i: a guard is a condition, not a whole number",
        ("if i", "if i<2"),
    ),
    (
        "type",
        "i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = select(i,A[i],0)\n",
        "select(i,A[i],0): select chooses by a condition, not by a whole number",
        ("select(i,", "select(i<2,"),
    ),
    (
        "type",
        "i:4\nA:bool[i] -> C:bool\nL_i C += A[i]\n",
        "+= accumulates numbers, but C is bool",
        ("C += A[i]", "C = A[i] if i==0"),
    ),
    (
        "kind",
        "i:6\nA:f32[i] -> C:f32[i]\nV_i C[i] = A[i]\n",
        "V_i has extent 6; a vector loop has one of 2, 4, 8, 16, 32, 64",
        ("i:6", "i:8"),
    ),
    (
        "kind",
        "i,j:8\nA:f32[i,j] -> C:f32[i,j]\nV_i P_j C[i,j] = A[i,j]\n",
        "P_j stands inside V_i",
        ("P_j", "L_j"),
    ),
    (
        "kind",
        "i,j:8\nA:f32[i,j] -> C:f32[i,j]\nP_i,j C[i,j] = A[i,j]\n",
        "P_j stands inside P_i; parallel loops don't nest",
        ("P_i,j", "P_i V_j"),
    ),
    (
        "kind",
        "i:8\nA:f32[i] -> C:f32[i]\nV_i [\n  D:f32\n  D = A[i]\n  C[i] = D\n]\n",
        "D is declared inside a vector loop, which would not make it private",
        ("V_i", "L_i"),
    ),
    (
        "kind",
        "i:1000000\nA:f32[i] -> C:f32[i]\nU_i C[i] = A[i]\n",
        "unrolling makes 1,000,000 copies of equations; the limit of a nest is 256",
        ("U_i", "L_i"),
    ),
    (
        "axis",
        "i:8\nA:f32[i] -> C:f32[i]\nB^tx_i C[i] = A[i]\n",
        "B^tx_i is bound to a GPU axis, which the target llvm lacks",
        ("B^tx_i", "P_i"),
    ),
    (
        "bounds",
        "i:16 j:64\nA:f32[i,j] -> C:f32[i,j]\nL_i,j C[i,j] = A[i,j+1]\n",
        "A[i,j+1]: subscript 2 reaches 64, but A has extent 64 there (j<64)",
        ("j+1", "63-j"),
    ),
    (
        "bounds",
        "i:16\nA:f32[i] -> C:f32[i]\nL_i C[i] = A[i-1]\n",
        "A[i-1]: subscript 1 reaches -1, but A has extent 16 there (i<16)",
        ("A[i-1]", "select(i>0,A[i-1],0.0)"),
    ),
    (
        "bounds",
        "i:16\nA:f32[i] -> C:f32[i]\nL_i C[i] = select(i<15,A[i+2],0.0)\n",
        "A[i+2]: subscript 1 reaches 16, but A has extent 16 there (i=14)",
        ("i<15", "i<14"),
    ),
    (
        "bounds",
        "io:4 ii:32\nA:f32[100] -> C:f32[100]\nL_io,ii C[32io+ii] = A[32io+ii]\n",
        "C[32io+ii]: subscript 1 reaches 127, but C has extent 100 there (ii<32, io<4)",
        ("A[32io+ii]\n", "A[32io+ii] if 32io+ii<100\n"),
    ),
    (
        "bounds",
        "i,j:16\nA:f32[200] -> C:f32[i,j]\nL_i,j C[i,j] = A[i*j]\n",
        "A[i*j]: subscript 1 may reach 225, but A has extent 200 there",
        ("200", "226"),
    ),
    (
        "defined",
        "i:16\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i C[i] = D[i]\n",
        "C[i] = D[i]: D is read, but nothing writes it",
        ("= D[i]", "= A[i]"),
    ),
    (
        "defined",
        "i:16\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_i C[i] = D[i]\nL_i D[i] = A[i]\n",
        "C[i] = D[i]: D is read before anything writes it",
        ("L_i C[i] = D[i]\nL_i D[i] = A[i]", "L_i D[i] = A[i]\nL_i C[i] = D[i]"),
    ),
    (
        "defined",
        "i:64 j:63\nA:f32[i] -> C:f32[i]; D:f32[i]\nL_j D[j] = A[j]\nL_i C[i] = D[i]\n",
        "C[i] = D[i]: D[63] is read at i=63 before it is written",
        ("L_j D[j] = A[j]\n", "L_j D[j] = A[j]\nD[63] = 0.0\n"),
    ),
    (
        "defined",
        "i:16\nA:f32[i] -> C:f32[i]; D:f32[17]\nL_i [\n  C[i] = D[i]\n  D[i+1] = A[i]\n]\n",
        "C[i] = D[i]: D[0] is read at i=0 before it is written",
        ("L_i [", "D[0] = 0.0\nL_i ["),
    ),
    (
        "defined",
        "i:16\nA:f32[i] -> C:f32[17]\nL_i C[i] = A[i]\n",
        "output C: element C[16] is never written",
        ("C[i] = A[i]\n", "C[i] = A[i]\nC[16] = 0.0\n"),
    ),
    (
        "defined",
        "i:16\nA:f32[i] -> B,C:f32[i]\nL_i C[i] = A[i]\n",
        "output B is never written",
        ("C[i] = A[i]\n", "C[i] = A[i]\nL_i B[i] += A[i]\n"),
    ),
    (
        "promise",
        "i,k:16\nA:f32[i,k] -> C:f32[i]\nL_i P_k C[i] += A[i,k]\n",
        "P_k is not safe: k carries the reduction of C (C[i] += A[i,k])",
        ("L_i P_k", "P_i L_k"),
    ),
    (
        "promise",
        "i:16\n-> C:f32[17]\nC[0] = 1.0\nV_i C[i+1] = C[i]\n",
        "V_i is not safe: i carries a dependence of C: C[i+1] = C[i] reads C that C[i+1] = C[i] wrote "
        "in an earlier iteration",
        ("V_i", "L_i"),
    ),
    (
        "size",
        "i:2000000000\n-> C:f32[i]\nL_i C[i] = 1.0\n",
        "all tensors take 8,000,000,000 bytes; the limit is 2,147,483,648",
        ("2000000000", "2000"),
    ),
    (
        "size",
        "i,j:16384\n-> C:f32; D:f32[i,j]\nL_i,j D[i,j] = 1.0\nC = D[0,0]\n",
        "D:f32[16384,16384] takes 1,073,741,824 bytes; the limit of a temporary is 268,435,456",
        ("16384", "64"),
    ),
    (
        "size",
        "i:2000000000 j:2000\n-> C:f32\nL_i,j C += 1.0\n",
        "one run takes 4e+12 operations; the limit is 2e+12",
        ("2000000000", "2000"),
    ),
    (
        "size",
        "i:3000000000\n-> C:f32\nL_i C max= 1.0\n",
        "index i has extent 3,000,000,000; an extent is 1 to 2,147,483,647",
        ("3000000000", "3000"),
    ),
    ("size", "-> C:f32[0]; D:f32\nD = 1.0\n", "C:f32[0]: every extent is at least 1", ("C:f32[0]", "C:f32")),
]
MENDED = {"-> C:f32; D:f32\nD = 1.0\n": "-> C:f32; D:f32\nC = 1.0\n"}


@pytest.mark.parametrize(("code", "text", "sentence", "mend"), CASES, ids=[case[2][:40] for case in CASES])
def test_a_rule_refuses_in_its_own_words_and_passes_the_mended_program(
    code: str, text: str, sentence: str, mend: tuple[str, str]
) -> None:
    assert (code, sentence) in found(text)
    mended = text.replace(*mend)
    assert found(MENDED.get(mended, mended)) == []


READ = Access("A", (Index("i"),))


def scale(value: Expr = READ, **changes: object) -> Program:
    """C[i] = A[i], with parts of the records replaced."""
    equation = Equation(Access("C", (Index("i"),)), Assign.SET, value)
    loop = replace(Loop(Kind.SERIAL, "i", 8, Block((equation,))), **changes)
    tensors = (Tensor("A", DType.F32, (8,), role=Role.INPUT), Tensor("C", DType.F32, (8,), role=Role.OUTPUT))
    return Program(Block((loop,), tensors))


def with_tensor(tensor: Tensor) -> Program:
    program = scale()
    return Program(replace(program.block, tensors=(*program.tensors, tensor)))


def nested(inner: Loop) -> Program:
    return scale(block=Block((inner,)))


EQUATION = Equation(Access("C", (Index("i"),)), Assign.SET, Const(1.0))

BUILT: list[tuple[str, Program, str]] = [
    ("index", scale(index="exp"), "exp is not an index name (a lower-case word, not reserved)"),
    ("index", scale(index="e5"), "e5 is not an index name (a lower-case word, not reserved)"),
    ("index", scale(block=Block(())), "loop i has no statement"),
    (
        "index",
        nested(Loop(Kind.SERIAL, "i", 8, Block((EQUATION,)))),
        "loop i stands inside another loop over i",
    ),
    (
        "index",
        Program(Block((*scale().body, *scale(extent=4).body), scale().tensors)),
        "index i has two extents, 8 and 4",
    ),
    (
        "tensor",
        with_tensor(Tensor("L", DType.F32)),
        "L is not a tensor name (a capitalised word, none of L P U V)",
    ),
    ("tensor", with_tensor(Tensor("C", DType.F32)), "C is declared twice"),
    (
        "tensor",
        scale(block=Block((EQUATION,), (Tensor("D", DType.F32, role=Role.INPUT),))),
        "D is an input; inside a loop only temporaries are declared",
    ),
    ("tensor", Program(Block(())), "the program has no output"),
    (
        "tensor",
        Program(Block((), (Tensor("A", DType.F32, (4,), Scope.SHARED, Role.OUTPUT),))),
        "A:f32.s[4]: an output is global",
    ),
    ("scope", scale(value=Access("A", (Index("z"),))), "C[i] = A[z]: no loop here runs over z"),
    ("size", scale(extent=0), "index i has extent 0; an extent is 1 to 2,147,483,647"),
    ("size", scale(extent=-3), "index i has extent -3; an extent is 1 to 2,147,483,647"),
]


@pytest.mark.parametrize(("code", "program", "sentence"), BUILT, ids=[case[2][:40] for case in BUILT])
def test_a_program_built_from_records_is_held_to_the_same_rules(code: str, program: Program, sentence: str) -> None:
    assert verify(scale()) == ()
    assert (code, sentence) in [(problem.code, problem.sentence) for problem in verify(program)]


KERNEL = """\
io:16 ii:32 k:8
A:f32[512,k] -> C:f32[512]
B^bx_io [
  S:f32.s[ii,k]
  B^tx_ii L_k S[ii,k] = A[32io+ii,k]
  B^tx_ii [
    R:f32.l
    L_k R += S[ii,k]
    C[32io+ii] = R
  ]
]
"""

GPU: list[tuple[str, tuple[str, str], str]] = [
    ("axis", ("B^tx_ii L_k S", "L_k B^bx_ii S"), "B^bx_ii stands inside another loop bound to bx"),
    (
        "axis",
        ("B^tx_ii [", "B^by_ii ["),
        "B^by_ii: the block loops of a kernel are its outermost loops, one directly inside the other",
    ),
    ("axis", ("B^bx_io", "P_io"), "B^tx_ii stands inside a parallel loop, which runs on the CPU"),
    ("axis", ("L_k S", "P_k S"), "P_k stands inside a bound loop"),
    ("axis", ("ii:32", "ii:2048"), "B^tx_ii has extent 2,048; the limit of tx is 1,024"),
    ("axis", ("L_k S", "B^ty_k S"), "a block has 2,048 threads (tx 256 x ty 8); the limit is 1,024"),
    (
        "storage",
        ("R:f32.l", "R:f32.s"),
        "R:f32.s: a shared tensor is declared inside the block loops and outside the thread loops",
    ),
    (
        "storage",
        ("S:f32.s", "S:f32.l"),
        "S:f32.l[32,8] stands outside the thread loops that use it; make it shared",
    ),
    ("storage", ("k:8", "k:512"), "a block has 65,536 bytes of shared tensors; the limit is 49,152"),
    (
        "storage",
        ("-> C:f32[512]", "-> C:f32[512]; T:f32.l[512]"),
        "T:f32.l[512]: a local tensor of a GPU program is declared inside a thread loop",
    ),
    (
        "promise",
        ("L_k R", "B^ty_k R"),
        "B^ty_k is not safe: k carries the reduction of R (R += S[ii,k])",
    ),
]


def test_a_kernel_with_a_shared_tile_is_well_formed_for_cuda_and_refused_for_llvm() -> None:
    assert found(KERNEL, "cuda") == []
    assert [code for code, _ in found(KERNEL)] == ["axis"]


@pytest.mark.parametrize(("code", "change", "sentence"), GPU, ids=[case[2][:40] for case in GPU])
def test_a_kernel_keeps_the_rules_of_a_gpu(code: str, change: tuple[str, str], sentence: str) -> None:
    text = KERNEL.replace(*change)
    if "ty 8" in sentence:
        text = text.replace("ii:32", "ii:256").replace("32io", "256io").replace("[512", "[4096")
    assert (code, sentence) in found(text, "cuda")


def test_every_rule_has_a_demand_and_a_program_that_breaks_it() -> None:
    broken = {case[0] for case in CASES} | {case[0] for case in BUILT} | {case[0] for case in GPU}
    assert broken == set(RULES)
    assert all(rule.demand for rule in RULES.values())


def test_only_the_first_stage_with_problems_reports() -> None:
    text = "i:6\nA:f32[i] -> C:f32[i]\nV_i C[i] = D[i+1]\n"
    assert {code for code, _ in found(text)} == {"scope", "kind"}


def test_check_raises_with_every_problem() -> None:
    with pytest.raises(VerifyError, match=re.escape("scope: C[i] = D[i]: D is not declared")) as caught:
        check(parse("i:6\n-> C:f32[i]\nL_i C[i] = D[i]\n"))
    assert [problem.code for problem in caught.value.problems] == ["scope"]


def test_load_points_at_the_word_in_its_line() -> None:
    with pytest.raises(ParseError) as caught:
        load("i:16 j:64\nA:f32[i,j] -> C:f32[i,j]\nL_i [\n  L_j C[i,j] = exp(A[i,j+1])\n]\n")
    error = caught.value
    assert (error.line, error.column) == (4, 20)
    assert str(error) == (
        "line 4, column 20: A[i,j+1]: subscript 2 reaches 64, but A has extent 64 there (j<64)\n"
        "    L_j C[i,j] = exp(A[i,j+1])\n"
        "                     ^"
    )


def test_load_points_at_a_loop_and_at_a_declaration() -> None:
    with pytest.raises(ParseError) as caught:
        load("i,j:6\nA:f32[i,j] -> C:f32[i,j]\nL_j V_i C[i,j] = A[i,j]\n")
    assert (caught.value.line, caught.value.column) == (3, 7)
    with pytest.raises(ParseError) as caught:
        load("i:6\nA:f32[i] -> C:f32[i] D:f32[7]\nL_i C[i] = A[i]\nL_i D[i] = A[i]\n")
    assert (caught.value.line, caught.value.column) == (2, 22)
    assert "element D[6] is never written" in str(caught.value)


def test_load_says_how_many_more_problems_there_are() -> None:
    with pytest.raises(ParseError, match=r"D is not declared \(and 1 more\)"):
        load("i:6\n-> C:f32[i]\nL_i C[i] = D[i]+E[i]\n")


def test_subscripts_that_depend_on_data_are_let_pass() -> None:
    assert found("i:4\nI:i32[i] A:f32[9] -> C:f32[i]\nL_i C[i] = A[I[i]]\n") == []
    assert found("i:4\nI:i32[i] A:f32[9] -> C:f32[i]; D:f32[9]\nL_i D[I[i]] = A[i]\nL_i C[i] = D[i]\n") == []


def test_a_concatenation_covers_its_output_in_pieces() -> None:
    text = "i:8 j:4\nA:f32[i] B:f32[j] -> C:f32[12]\nL_i C[i] = A[i]\nL_j C[j+8] = B[j]\n"
    assert found(text) == []
    assert found(text.replace("j+8", "j+7")) == [("defined", "output C: element C[11] is never written")]


def test_a_running_value_is_defined_by_the_iteration_before() -> None:
    text = "i:8\nA:f32[i] -> C:f32[i]; D:f32\nD = 0.0\nL_i [\n  C[i] = D\n  D = D+A[i]\n]\n"
    assert found(text) == []
    inner = "i:8\nA:f32[i] -> C:f32[i]\nL_i [\n  D:f32\n  C[i] = D\n  D = A[i]\n]\n"
    assert found(inner) == [("defined", "C[i] = D: D is read before anything writes it")]


def test_weak_numbers_adapt_and_strong_ones_do_not() -> None:
    def takers(op: str, *args: Expr) -> set[DType]:
        equation = Equation(Access("C"), Assign.SET, Call(op, args))
        known = (("A", DType.F16), ("I", DType.I32))
        return {dtype for dtype in DType if not type_problems(equation, (*known, ("C", dtype)))}

    half, whole, index = Access("A"), Const(2), Index("i")
    floats, integers = ({d for d in DType if d.is_float}, {d for d in DType if d.is_int})
    assert takers("mul", half, whole) == takers("add", index, half) == {DType.F16}
    assert takers("add", index, whole) == floats | integers and takers("div", index, whole) == floats
    assert takers("add", Access("I"), index) == {DType.I32} and takers("add", Access("I"), half) == set()
    assert takers("max", half, Const(float("-inf"))) == {DType.F16}
    assert takers("lt", half, whole) == takers("not", Const(True)) == {DType.BOOL}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_generated_programs_are_well_formed(seed: int) -> None:
    assert verify(random_program(np.random.default_rng(seed))) == ()


@SETTINGS
@given(programs())
def test_a_read_is_called_undefined_exactly_where_brute_force_meets_one(program: Program) -> None:
    started = frozenset(starts(program))
    refused = {path for _, path, _ in undefined(program, started) if path}
    written: set[object] = set()
    shown = set()
    for instance in instances(program):
        for place, assign in instance.touched:
            read = assign is not Assign.SET
            if read and place not in written and place[0] not in started:
                shown.add(instance.path)
        written.add(instance.touched[0][0])
    assert refused == shown


def test_a_hostile_program_of_1e54_iterations_is_refused_by_arithmetic() -> None:
    loops = [f"{a}{b}" for a in "ijk" for b in "xyz"]
    head = " ".join(f"{name}:1000000" for name in loops)
    text = f"{head}\n-> C:f32\n{' '.join(f'U_{name}' for name in loops)} C += 1.0\n"
    assert found(text)[0][0] == "size"


def test_a_bound_loop_is_well_formed_for_cuda() -> None:
    program = scale(kind=Kind.BOUND, axis=Axis.TX)
    assert verify(program, "cuda") == ()


def test_subscripts_computed_in_a_type_that_wraps_are_refused() -> None:
    text = "i:4\nA:f32[256] B:i8[i] -> C:f32[i]\nL_i C[i] = A[B[i]%100+B[i]%100]\n"
    (problem,) = verify(parse(text))
    assert "computes in i8, which wraps" in problem.sentence
    assert verify(parse(text.replace("B[i]%", "i32(B[i])%"))) == ()


def test_what_a_condition_says_of_data_does_not_hide_what_it_says_of_indices():
    text = "i:4 j:3\nA:f32[3,j] N:i32[i] -> C:f32[i,j]\nL_i,j C[i,j] = select({},A[i-1,j],0.0)\n"
    assert verify(parse(text.format("i>=1 and N[i]>=1"))) == ()
    assert verify(parse(text.format("not (i<1 or N[i]<1)"))) == ()
    (problem,) = verify(parse(text.format("i>=1 or N[i]>=1")))
    assert problem.code == "bounds"
