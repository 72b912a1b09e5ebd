"""Programs in the flat form of Step-TP: what they mean, and where a malformed one is wrong."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from click.testing import CliRunner

import leirgym
from envs.common.console import Verbs
from envs.leir_env.interp import numpy_dtype, run
from envs.leir_env.ir import DType, Kind, Loop
from envs.leir_env.parser import MAX_CHARACTERS, ParseError, parse
from envs.leir_env.printer import show
from envs.leir_env.steptp import read
from envs.leir_env.tree import walk
from envs.leir_env.verify import verify


@dataclass(frozen=True)
class Example:
    """A published program, what is given beside it, its meaning, and smaller numbers to run it with."""

    text: str
    shapes: str
    meaning: Callable[..., np.ndarray]
    smaller: dict[int, int]

    def small(self, text: str) -> str:
        return re.sub(r"(?<![A-Za-z0-9.])\d+", lambda m: str(self.smaller.get(int(m[0]), int(m[0]))), text)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


erf = np.vectorize(math.erf)


def windows(x: np.ndarray, shape: tuple[int, int], steps: tuple[int, int], holes: tuple[int, int]) -> np.ndarray:
    """Every window of the last two axes, its elements last."""
    (kh, kw), (sh, sw), (dh, dw) = shape, steps, holes
    view = np.lib.stride_tricks.sliding_window_view(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), (-2, -1))
    return view[..., ::sh, ::sw, ::dh, ::dw]


def convolution(x: np.ndarray, w: np.ndarray, holes: tuple[int, int] = (1, 1)) -> np.ndarray:
    return np.einsum("nchwij,ocij->nohw", windows(x, w.shape[2:], (1, 1), holes), w)


def layer_norm(a: np.ndarray, d: np.ndarray, e: np.ndarray) -> np.ndarray:
    mean, var = a.mean((1, 2, 3), keepdims=True), a.var((1, 2, 3), keepdims=True)
    return d * (a - mean) / np.sqrt(var + 1e-5) + e


def cross_entropy(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.array(-np.log(softmax(a))[np.arange(len(a)), c].mean())


def attention(k: np.ndarray, o: np.ndarray, n: np.ndarray, mask: np.ndarray) -> np.ndarray:
    scores = np.einsum("bhcf,bhfd->bhcd", k, o) / 4
    return np.einsum("bhcf,bhfd->bhcd", softmax(np.where(mask, -np.inf, scores)), n)


EXAMPLES = {
    "relu": Example(
        "B^{16}_{tx=0}L^{16384}_{a=0}[C^{f32,g}_{tx,a}=max(A^{f32,g}_{tx,a},0);];",
        "A:f32[16,16384] C:f32[16,16384]",
        lambda a: np.maximum(a, 0),
        {16384: 24},
    ),
    "gelu": Example(
        "B^{16}_{tx=0}L^{16384}_{a=0}[C^{f32,g}_{tx,a}=A^{f32,g}_{tx,a}*0.5*(1+erf(A^{f32,g}_{tx,a}/sqrt(2)));];",
        "A:f32[16,16384] C:f32[16,16384]",
        lambda a: a * 0.5 * (1 + erf(a / np.sqrt(2))),
        {16384: 24},
    ),
    "matmul": Example(
        "B^{1024}_{tx=0}L^{1024}_{a=0}L^{1024}_{c=0}"
        "[D^{f32,g}_{tx,a}=D^{f32,g}_{tx,a}+A^{f32,g}_{tx,c}*C^{f32,g}_{c,a};];",
        "A:f32[1024,1024] C:f32[1024,1024] D:f32[1024,1024]",
        lambda a, c: a @ c,
        {1024: 20},
    ),
    "conv2d": Example(
        "B^{16}_{tx=0}L^{64}_{a=0}L^{254}_{c=0}L^{254}_{d=0}L^{3}_{f=0}L^{3}_{g=0}L^{3}_{h=0}"
        "[C^{f32,g}_{tx,a,c,d}=C^{f32,g}_{tx,a,c,d}+D^{f32,g}_{a,f,g,h}*A^{f32,g}_{tx,f,c+g,d+h};];",
        "A:f32[16,3,256,256] | D:f32[64,3,3,3] -> C:f32[16,64,254,254]",
        convolution,
        {16: 2, 64: 4, 254: 7, 256: 9},
    ),
    "conv2d_padded_dilated": Example(
        "B^{16}_{tx=0}L^{3}_{a=0}L^{260}_{c=0}L^{258}_{d=0}"
        "[E^{f32,g}_{tx,a,c,d}=if_then_else(2<=c<258&1<=d<257,A^{f32,g}_{tx,a,c-2,d-1},0);];"
        "B^{16}_{tx=0}L^{64}_{a=0}L^{256}_{c=0}L^{254}_{d=0}L^{3}_{f=0}L^{5}_{g=0}L^{3}_{h=0}"
        "[C^{f32,g}_{tx,a,c,d}=C^{f32,g}_{tx,a,c,d}+D^{f32,g}_{a,f,g,h}*E^{f32,g}_{tx,f,c+g,d+h*2};];",
        "A:f32[16,3,256,256] D:f32[64,3,5,3] C:f32[16,64,256,254]",
        lambda a, d: convolution(np.pad(a, ((0, 0), (0, 0), (2, 2), (1, 1))), d, (1, 2)),
        {16: 2, 64: 4, 254: 6, 256: 8, 257: 9, 258: 10, 260: 12},
    ),
    "max_pool": Example(
        "B^{16}_{tx=0}L^{32}_{a=0}L^{130}_{c=0}L^{130}_{d=0}"
        "[D^{f32,g}_{tx,a,c,d}=if_then_else(1<=c<129&1<=d<129,A^{f32,g}_{tx,a,c-1,d-1},-inf);];"
        "B^{16}_{tx=0}L^{32}_{a=0}L^{64}_{c=0}L^{64}_{d=0}L^{2}_{f=0}L^{2}_{g=0}"
        "[C^{f32,g}_{tx,a,c,d}=max(C^{f32,g}_{tx,a,c,d},D^{f32,g}_{tx,a,c*2+f*3,d*2+g*3});];",
        "A:f32[16,32,128,128] C:f32[16,32,64,64]",
        lambda a: windows(
            np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf), (2, 2), (2, 2), (3, 3)
        ).max((-2, -1)),
        {16: 2, 32: 3, 64: 5, 128: 10, 129: 11, 130: 12},
    ),
    "softmax": Example(
        "B^{16}_{tx=0}L^{16384}_{a=0}[D^{f32,g}_{tx}=max(D^{f32,g}_{tx},A^{f32,g}_{tx,a});];"
        "B^{16}_{tx=0}L^{16384}_{a=0}[E^{f32,g}_{tx}=E^{f32,g}_{tx}+exp(A^{f32,g}_{tx,a}-D^{f32,g}_{tx});];"
        "B^{16}_{tx=0}L^{16384}_{a=0}[C^{f32,g}_{tx,a}=exp(A^{f32,g}_{tx,a}-D^{f32,g}_{tx})/E^{f32,g}_{tx};];",
        "A:f32[16,16384] C:f32[16,16384]",
        softmax,
        {16384: 40},
    ),
    "layernorm": Example(
        "B^{16}_{tx=0}L^{64}_{a=0}L^{256}_{c=0}L^{128}_{d=0}[F^{f32,g}_{tx}=F^{f32,g}_{tx}+A^{f32,g}_{tx,a,c,d};];"
        "B^{16}_{tx=0}[G^{f32,g}_{tx}=F^{f32,g}_{tx}/2097152;];"
        "B^{16}_{tx=0}L^{64}_{a=0}L^{256}_{c=0}L^{128}_{d=0}"
        "[H^{f32,g}_{tx}=H^{f32,g}_{tx}+(A^{f32,g}_{tx,a,c,d}-G^{f32,g}_{tx})**2;];"
        "B^{16}_{tx=0}[I^{f32,g}_{tx}=H^{f32,g}_{tx}/2097152;];"
        "B^{16}_{tx=0}L^{64}_{a=0}L^{256}_{c=0}L^{128}_{d=0}"
        "[J^{f32,g}_{tx,a,c,d}=(A^{f32,g}_{tx,a,c,d}-G^{f32,g}_{tx})/sqrt(I^{f32,g}_{tx}+1e-05);];"
        "B^{16}_{tx=0}L^{64}_{a=0}L^{256}_{c=0}L^{128}_{d=0}"
        "[C^{f32,g}_{tx,a,c,d}=D^{f32,g}_{a,c,d}*J^{f32,g}_{tx,a,c,d}+E^{f32,g}_{a,c,d};];",
        "A:f32[16,64,256,128] | D:f32[64,256,128] E:f32[64,256,128] -> C:f32[16,64,256,128]",
        layer_norm,
        {64: 3, 256: 4, 128: 5, 2097152: 60},
    ),
    "cumsum": Example(
        "B^{128}_{tx=0}L^{4000}_{a=0}L^{4000}_{c=0}"
        "[C^{f32,g}_{tx,a}=C^{f32,g}_{tx,a}+if_then_else(c<=a,A^{f32,g}_{tx,c},0);];",
        "A:f32[128,4000] C:f32[128,4000]",
        lambda a: np.cumsum(a, 1),
        {128: 4, 4000: 25},
    ),
    "argmax": Example(
        "B^{16}_{tx=0}L^{256}_{a=0}L^{256}_{c=0}"
        "[D^{f32,g}_{tx,c}=max(D^{f32,g}_{tx,c},A^{f32,g}_{tx,a,c});C^{i64,g}_{tx,c}=0;];"
        "B^{16}_{tx=0}L^{256}_{a=0}L^{256}_{c=0}"
        "[C^{i64,g}_{tx,c}=if_then_else(A^{f32,g}_{tx,a,c}>=D^{f32,g}_{tx,c},a,C^{i64,g}_{tx,c});];",
        "A:f32[16,256,256] C:i64[16,256]",
        lambda a: a.argmax(1),
        {256: 9},
    ),
    "tanh": Example(
        "B^{16}_{tx=0}L^{16384}_{a=0}[D^{f32,g}_{tx,a}=exp(A^{f32,g}_{tx,a})-exp(-A^{f32,g}_{tx,a});];"
        "B^{16}_{tx=0}L^{16384}_{a=0}[E^{f32,g}_{tx,a}=exp(A^{f32,g}_{tx,a})+exp(-A^{f32,g}_{tx,a});];"
        "B^{16}_{tx=0}L^{16384}_{a=0}[C^{f32,g}_{tx,a}=D^{f32,g}_{tx,a}/E^{f32,g}_{tx,a};];",
        "A:f32[16,16384] C:f32[16,16384]",
        np.tanh,
        {16384: 24},
    ),
    "cross_entropy": Example(
        "B^{1024}_{tx=0}L^{10}_{a=0}[D^{f32,g}_{tx}=max(D^{f32,g}_{tx},A^{f32,g}_{tx,a});];"
        "B^{1024}_{tx=0}L^{10}_{a=0}[F^{f32,g}_{tx}=F^{f32,g}_{tx}+exp(A^{f32,g}_{tx,a}-D^{f32,g}_{tx});];"
        "B^{1024}_{tx=0}L^{10}_{a=0}[E^{f32,g}_{tx,a}=A^{f32,g}_{tx,a}-D^{f32,g}_{tx}-log(F^{f32,g}_{tx});];"
        "B^{10}_{tx=0}[H^{i64,g}_{tx}=1;];"
        "B^{1024}_{tx=0}[I^{f32,g}_{tx}=-H^{i64,g}_{C^{i64,g}_{tx}}*E^{f32,g}_{tx,C^{i64,g}_{tx}};];"
        "B^{1024}_{tx=0}[J^{f32,g}=J^{f32,g}+I^{f32,g}_{tx};];"
        "B^{1}_{tx=0}[G^{f32,g}=J^{f32,g}/1024;];",
        "A:f32[1024,10] C:i64[1024] G:f32",
        cross_entropy,
        {1024: 12},
    ),
    "causal_attention": Example(
        "L^{1}_{a=0}[R^{f64,g}=16;];L^{1}_{a=0}[W^{f64,g}=1/sqrt(R^{i32,g});];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{256}_{d=0}L^{16}_{f=0}"
        "[Q^{f32,g}_{tx,a,c,d}=Q^{f32,g}_{tx,a,c,d}+K^{f32,g}_{tx,a,c,f}*O^{f32,g}_{tx,a,f,d};];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{256}_{d=0}[X^{f32,g}_{tx,a,c,d}=Q^{f32,g}_{tx,a,c,d}*W^{f64,g};];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{256}_{d=0}"
        "[Y^{f32,g}_{tx,a,c,d}=if_then_else(Ag^{bool,g}_{0,0,c,d},-inf,X^{f32,g}_{tx,a,c,d});];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{256}_{d=0}"
        "[Am^{f32,g}_{tx,a,c}=max(Am^{f32,g}_{tx,a,c},Y^{f32,g}_{tx,a,c,d});];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{256}_{d=0}"
        "[An^{f32,g}_{tx,a,c}=An^{f32,g}_{tx,a,c}+exp(Y^{f32,g}_{tx,a,c,d}-Am^{f32,g}_{tx,a,c});];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{256}_{d=0}"
        "[Z^{f32,g}_{tx,a,c,d}=exp(Y^{f32,g}_{tx,a,c,d}-Am^{f32,g}_{tx,a,c})/An^{f32,g}_{tx,a,c};];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}L^{16}_{d=0}L^{256}_{f=0}"
        "[Aa^{f32,g}_{tx,a,c,d}=Aa^{f32,g}_{tx,a,c,d}+Z^{f32,g}_{tx,a,c,f}*N^{f32,g}_{tx,a,f,d};];",
        "K:f32[64,8,256,16] O:f32[64,8,16,256] N:f32[64,8,256,16] Ag:bool[1,1,256,256] Aa:f32[64,8,256,16]",
        attention,
        {64: 2, 8: 3, 256: 10},
    ),
    "flash_attention": Example(
        "B^{64}_{tx=0}L^{8}_{a=0}L^{256}_{c=0}["
        "D^{f64,g}_{tx,a,c}=max(if_then_else(c-1<0,-inf,D^{f64,g}_{tx,a,c-1}),A^{f64,g}_{tx,a,c});"
        "J^{f64,g}_{tx,a,c}=if_then_else(c-1<0,0,J^{f64,g}_{tx,a,c-1}*exp(D^{f64,g}_{tx,a,c-1}-D^{f64,g}_{tx,a,c}))"
        "+exp(A^{f64,g}_{tx,a,c}-D^{f64,g}_{tx,a,c});"
        "L^{16}_{h=0}[K^{f64,g}_{tx,a,h,c}=if_then_else(c-1<0,0,K^{f64,g}_{tx,a,h,c-1}*"
        "(J^{f64,g}_{tx,a,c-1}/J^{f64,g}_{tx,a,c})*exp(D^{f64,g}_{tx,a,c-1}-D^{f64,g}_{tx,a,c}))"
        "+exp(A^{f64,g}_{tx,a,c}-D^{f64,g}_{tx,a,c})/J^{f64,g}_{tx,a,c}*E^{f64,g}_{tx,c,h};];];"
        "B^{64}_{tx=0}L^{8}_{a=0}L^{16}_{h=0}[C^{f64,g}_{tx,a,h}=K^{f64,g}_{tx,a,h,255};];",
        "A:f64[64,8,256] E:f64[64,256,16] C:f64[64,8,16]",
        lambda a, e: softmax(a) @ e,
        {64: 4, 8: 5, 256: 8, 255: 7, 16: 6},
    ),
}


def drawn(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> np.ndarray:
    if dtype is DType.BOOL:  # A mask that leaves each row something.
        return np.triu(np.ones(shape[-2:], bool), 1).reshape(shape)
    if dtype.is_int:
        return rng.integers(0, 10, shape)
    return rng.normal(size=shape).astype(numpy_dtype(dtype))


# Cross entropy adds up over its bound axis, a race; test_a_promise_that_does_not_hold says what follows.
@pytest.mark.parametrize(
    ("name", "bound"),
    [(name, bound) for name in EXAMPLES for bound in (False, True) if (name, bound) != ("cross_entropy", True)],
)
def test_a_published_program_at_its_published_size_is_well_formed(name, bound):
    example = EXAMPLES[name]
    reading = read(example.text, example.shapes, bound)
    program = reading.program
    assert reading.notes == () and verify(program, "cuda" if bound else "llvm") == ()
    assert parse(show(program)) == program
    kinds = {node.statement.kind for node in walk(program) if isinstance(node.statement, Loop)}
    assert kinds <= {Kind.SERIAL, Kind.BOUND} and (Kind.BOUND in kinds) == bound


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_published_program_means_what_numpy_says(name):
    example, rng = EXAMPLES[name], np.random.default_rng(7)
    program = read(example.small(example.text), example.small(example.shapes)).program
    inputs = {tensor.name: drawn(tensor.shape, tensor.dtype, rng) for tensor in program.inputs}
    (output,) = run(program, inputs).values()
    wanted = example.meaning(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs.values()))
    assert output.shape == wanted.shape
    np.testing.assert_allclose(output, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_example_is_met_by_zeros(name):
    example, rng = EXAMPLES[name], np.random.default_rng(7)
    program = read(example.small(example.text), example.small(example.shapes)).program
    inputs = {tensor.name: drawn(tensor.shape, tensor.dtype, rng) for tensor in program.inputs}
    (output,) = run(program, inputs).values()
    assert np.abs(output).max() > 0.05


def value(text: str, shapes: str, **inputs: np.ndarray) -> np.ndarray:
    (output,) = run(read(text, shapes).program, inputs).values()
    return output


def test_the_text_reads_like_leir():
    example = EXAMPLES["softmax"]
    assert show(read(example.text, example.shapes).program) == (
        "tx:16 a:16384\nA:f32[tx,a] -> C:f32[tx,a]; D,E:f32[tx]\n"
        "L_tx,a D[tx] max= A[tx,a]\n"
        "L_tx,a E[tx] += exp(A[tx,a]-D[tx])\n"
        "L_tx,a C[tx,a] = exp(A[tx,a]-D[tx])/E[tx]\n"
    )


def test_a_loop_over_a_name_with_another_extent_gets_another_name():
    text = "L^{4}_{a=0}[C^{f32,g}_{a}=1;];L^{6}_{a=0}[D^{f32,g}_{a}=2;];L^{4}_{a2=0}[E^{f32,g}_{a2}=3;];"
    lines = show(read(text, "-> C:f32[4] D:f32[6] E:f32[4]").program).splitlines()
    assert lines[0] == "a,a22:4 a2:6"


@pytest.mark.parametrize(
    ("update", "wanted"),
    [
        ("C^{f32,g}+A^{f32,g}_{a}", 10),
        ("C^{f32,g}-A^{f32,g}_{a}", -10),
        ("C^{f32,g}*A^{f32,g}_{a}", 24),
        ("max(C^{f32,g},A^{f32,g}_{a})", 4),
        ("min(C^{f32,g},A^{f32,g}_{a})", 1),
        ("C^{f32,g}+A^{f32,g}_{a}+1", 14),
        ("C^{f32,g}*A^{f32,g}_{a}+1", ((1 * 1 + 1) * 2 + 1) * 12 + 4 + 1),
        ("A^{f32,g}_{a}/C^{f32,g}", 8 / 3),
    ],
)
def test_a_reduction_starts_by_the_operator_that_its_target_stands_next_to(update, wanted):
    text = f"L^{{4}}_{{a=0}}[C^{{f32,g}}={update};];"
    assert value(text, "A:f32[4] C:f32", A=np.arange(1, 5, dtype=np.float32)) == pytest.approx(wanted)


@pytest.mark.parametrize("update", ["A^{f32,g}_{a}+C^{f32,g}", "(C^{f32,g}+1)*A^{f32,g}_{a}", "exp(C^{f32,g})"])
def test_a_target_that_starts_from_nothing_is_refused(update):
    with pytest.raises(ParseError, match=r"C is read .*before it is written"):
        read(f"L^{{4}}_{{a=0}}[C^{{f32,g}}={update};];", "A:f32[4] C:f32")


def test_a_reduction_that_would_lose_an_earlier_value_is_refused():
    text = "L^{1}_{a=0}[C^{f32,g}=5;];L^{4}_{a=0}[C^{f32,g}=C^{f32,g}+A^{f32,g}_{a};];"
    with pytest.raises(ParseError, match="C has a value already, which is lost") as caught:
        read(text, "A:f32[4] C:f32")
    assert caught.value.column == text.index("C^{f32,g}=C") + 1


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        ("f32", "A^{f64,g}", 2.75),
        ("f64", "A^{f64,g}*I^{i64,g}", 8.25),
        ("i64", "A^{f64,g}*I^{i64,g}", 8),
        ("f64", "I^{i64,g}*0.5", 1.5),
        ("bool", "I^{i64,g}", True),
        ("bool", "0", False),
        ("f32", "if_then_else(I^{i64,g},2,A^{f64,g})", 2),
        ("i64", "(A^{f64,g}>I^{i64,g})+1", 1),
        ("f64", "-2**2+7//2%2", -3),
        ("i64", "1<2<3&(3<2|2!=3)", 1),
    ],
)
def test_where_dtypes_meet_the_narrower_is_cast(left, right, wanted):
    inputs = {"A": np.array(2.75), "I": np.array(3)}
    assert value(f"L^{{1}}_{{a=0}}[C^{{{left},g}}={right};];", f"A:f64 I:i64 -> C:{left}", **inputs) == wanted


def test_a_read_does_not_say_the_dtype_of_a_temporary():
    text = "L^{1}_{a=0}[R^{f64,g}=0.1;];L^{1}_{a=0}[C^{f64,g}=R^{i32,g};];"
    assert value(text, "-> C:f64") == 0.1


def kinds(text: str, shapes: str, bound: bool = False) -> tuple[list[str], tuple[str, ...]]:
    reading = read(text, shapes, bound)
    found = [node.statement for node in walk(reading.program)]
    return [f"{s.kind}{s.axis or ''}" for s in found if isinstance(s, Loop)], reading.notes


def test_bound_loops_stay_bound_where_that_is_asked_for():
    text = "B^{8}_{bxc=0}B^{4}_{tx=0}[C^{f32,g}_{bxc,tx}=1;];"
    assert kinds(text, "-> C:f32[8,4]") == (["L", "L"], ())
    assert kinds(text, "-> C:f32[8,4]", bound=True) == (["Bbx", "Btx"], ())


def test_a_kind_that_holds_stays():
    text = "P^{8}_{a=0}U^{2}_{c=0}V^{4}_{d=0}[C^{f32,g}_{a,c,d}=1;];"
    assert kinds(text, "-> C:f32[8,2,4]") == (["P", "U", "V"], ())


@pytest.mark.parametrize(
    ("text", "bound", "left"),
    [
        ("P^{8}_{a=0}[C^{f32,g}_{a}=if_then_else(a-1<0,0,C^{f32,g}_{a-1})+1;];", False, ["L"]),
        ("L^{2}_{a=0}V^{3}_{c=0}[C^{f32,g}_{a*3+c}=1;];", False, ["L", "L"]),
        ("P^{2}_{a=0}P^{3}_{c=0}[C^{f32,g}_{a*3+c}=1;];", False, ["P", "L"]),
        ("U^{300}_{a=0}[C^{f32,g}_{a}=1;];", False, ["L"]),
        ("B^{8}_{tx=0}[C^{f32,g}=C^{f32,g}+A^{f32,g}_{tx};];", True, ["L"]),
        ("B^{2000}_{tx=0}[C^{f32,g}_{tx}=1;];", True, ["L"]),
        ("B^{64}_{tx=0}B^{64}_{ty=0}[C^{f32,g}_{tx*64+ty}=1;];", True, ["L", "Bty"]),
        ("B^{8}_{tx=0}B^{8}_{bx=0}[C^{f32,g}_{tx*8+bx}=1;];", True, ["Btx", "L"]),
    ],
)
def test_a_promise_that_does_not_hold_is_dropped_and_noted(text, bound, left):
    size = math.prod(int(n) for n in re.findall(r"\^\{(\d+)", text)) if "C^{f32,g}=" not in text else 0
    shape = f"[{size}]" if size else ""
    found, notes = kinds(text, f"A:f32[8] -> C:f32{shape}", bound)
    assert found == left and len(notes) == 1 and " is serial here: " in notes[0]


FUSED = "{B}[D^{f32,%s}_{%s}=exp(A^{f32,g}_{bxa,txc});C^{f32,g}_{bxa,txc}=D^{f32,%s}_{%s}*2;];".replace(
    "{B}", "B^{8}_{bxa=0}B^{4}_{txc=0}"
)


@pytest.mark.parametrize(
    ("scope", "bound", "declared"),
    [
        ("l", False, "    D:f32.l\n"),
        ("s", False, "    D:f32\n"),
        ("l", True, "    D:f32.l\n"),
        ("s", True, "  D:f32.s[txc]\n"),
        ("g", True, "; D:f32[bxa,txc]\n"),
    ],
)
def test_a_scoped_tensor_stands_in_the_block_it_is_private_to(scope, bound, declared):
    text = FUSED % (scope, "bxa,txc", scope, "bxa,txc")
    reading = read(text, "A:f32[8,4] -> C:f32[8,4]", bound)
    plain = read(FUSED % ("g", "bxa,txc", "g", "bxa,txc"), "A:f32[8,4] -> C:f32[8,4]").program
    assert declared.strip() in show(reading.program) and reading.notes == ()
    a = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    assert np.array_equal(run(reading.program, {"A": a})["C"], run(plain, {"A": a})["C"])


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("scope", ["s", "l"])
def test_scopes_and_kinds_never_change_a_value(name, scope):
    example, rng = EXAMPLES[name], np.random.default_rng(7)
    text, shapes = example.small(example.text), example.small(example.shapes)
    inputs = {t.name: drawn(t.shape, t.dtype, rng) for t in read(text, shapes).program.inputs}
    (plain,) = run(read(text, shapes).program, inputs).values()
    scoped = re.sub(r"L(\^\{\d+\}_\{)", lambda m: rng.choice(list("LPVU")) + m[1], text.replace(",g}", f",{scope}}}"))
    for bound in (False, True):
        (output,) = run(read(scoped, shapes, bound).program, inputs).values()
        assert np.array_equal(output, plain)


def test_a_scoped_tensor_that_leaves_its_nest_is_global():
    text = "B^{8}_{tx=0}[D^{f32,s}_{tx}=A^{f32,g}_{tx}*2;];B^{8}_{tx=0}[C^{f32,g}_{tx}=D^{f32,s}_{7-tx};];"
    reading = read(text, "A:f32[8] -> C:f32[8]")
    assert reading.notes == ("D is global here: no block that it is private to can hold a shared tensor",)
    a = np.arange(8, dtype=np.float32)
    assert np.array_equal(run(reading.program, {"A": a})["C"], 2 * a[::-1])


def test_a_scoped_tensor_that_passes_a_value_between_iterations_stays_outside():
    text = "L^{8}_{a=0}[D^{f32,l}_{a}=if_then_else(a-1<0,0,D^{f32,l}_{a-1})+1;C^{f32,g}_{a}=D^{f32,l}_{a};];"
    assert np.array_equal(value(text, "-> C:f32[8]"), np.arange(1, 9))


def test_an_output_marked_shared_is_global():
    assert ".s" not in show(read("L^{8}_{a=0}[C^{f32,s}_{a}=1;];", "C:f32[8]").program)


GOOD = "L^{8}_{a=0}[C^{f32,g}_{a}=A^{f32,g}_{a};];"


@pytest.mark.parametrize(
    ("old", "new", "at", "message"),
    [
        ("=A", "=+A", "+A", r"found \+, expected .*a tensor"),
        (";];", ";]", "", "found the end of the text, expected ';'"),
        ("[C", "C", "f32,g}_{a}=", "found f32, expected an integer"),
        ("}_{a};", "}_{a;", ";", "found ;, expected .*'}'"),
        ("=A", "=é+A", "é", "found 'é', expected"),
        ("a=0", "a=1", "1", "loop a starts at 1; a loop starts at 0"),
        ("L^", "Q^", "Q", "Q is no kind of loop; there are L, P, V, U, B"),
        ("L^{8}_{a=0}", "B^{8}_{a=0}", "a=0", "bound loop a names no axis: its name begins with one of bx"),
        ("L^{8}", "L^{8}_{a=0}L^{8}", "L^{8}_{a=0}[", "loop a stands inside another loop over a"),
        ("_{a};", "_{c};", "c}", "no loop here runs over c"),
        ("=A", "=__import__", "__", "found '_', expected"),
        ("=A^{f32,g}_{a}", "=open(a)", "open", "unknown function open; there are abs"),
        ("=A^{f32,g}_{a}", "=exp(a,a)", "exp", "exp takes 1 arguments, got 2"),
        ("C^{f32", "C^{u8", "u8", "C is u8 here, but given as f32"),
        ("A^{f32", "A^{f16", "f16", "A is f16 here, but given as f32"),
        ("A^{f32,g", "A^{f32,q", "q", "q is no scope; there are g"),
        ("=A", "=B", "B", "B is neither given nor written: give its dtype and shape"),
        ("}_{a};", "}_{a+1};", "C", "subscript 1 reaches 8, but A has extent 8"),
        ("}_{a};", "}_{0.5};", "C", "a subscript is an integer"),
        ("}_{a};", "}_{a,a};", "C", "2 subscripts, but A has 1 dimensions"),
        ("=A", "=9999999999999999999*A", "9", "has more than 18 digits"),
        ("=A", "=1e999*A", "1e999", "1e999 is beyond the largest float"),
        ("=A", "=" + "1+" * 200 + "A", "C", "nested more than 150 deep"),
        ("=A", "=" + "(" * 90 + "A", "(", "brackets are nested more than 60 deep"),
        ("L^{8}", "L^{0}", "L", "extent 0"),
        ("_{a}=", "_{a//2}=", "L", "C_{4} is never written|never written"),
    ],
)
def test_a_malformed_text_is_an_error_at_its_place(old, new, at, message):
    assert GOOD.count(old) >= 1
    text = GOOD.replace(old, new, 1)
    with pytest.raises(ParseError, match=message) as caught:
        read(text, "A:f32[8] C:f32[8]")
    if at != "(":
        changed = GOOD.index(old)
        place = text.index(at, 0 if at in ("C", "L") else changed) if at else len(text)
        assert caught.value.line == 1 and caught.value.column == place + 1, caught.value


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("A:f32[8", "column 8: in the shapes, found the end of the text, expected ',', ']'"),
        ("A:u8[8] C:f32[8]", "u8 is no dtype of LEIR"),
        ("A:f32[8] A:f32[8] C:f32[8]", "A is given twice"),
        ("A:f32[8]", "the program has no output"),
        ("C:f32[8]", "A is neither given nor written"),
        ("A,C:f32[8] -> D:f32[8]", "writes the input C"),
        ("A:f32[8] -> C:f32[8] -> D:f32[8]", "expected"),
    ],
)
def test_malformed_shapes_are_an_error(shapes, message):
    with pytest.raises(ParseError, match=message):
        read(GOOD, shapes)


def test_an_error_in_a_long_line_shows_what_stands_around_it():
    text = EXAMPLES["causal_attention"].text.replace("An^{f32,g}_{tx,a,c};];B", "An^{f32,g}_{tx,a,q};];B")
    with pytest.raises(ParseError, match="no loop here runs over q") as caught:
        read(text, EXAMPLES["causal_attention"].shapes)
    _, shown, pointer = str(caught.value).split("\n")
    assert shown[pointer.index("^")] == "q" and len(shown) < 130 and caught.value.column > 500


def test_a_long_text_is_refused_before_it_is_read():
    with pytest.raises(ParseError, match=f"the limit is {MAX_CHARACTERS:,}"):
        read(" " * (MAX_CHARACTERS + 1), "C:f32")


@pytest.mark.parametrize("value", ["-" * 150_000, "2**" * 50_000 + "2", "-2**" * 40_000 + "2", "1+" * 90_000 + "1"])
def test_a_long_chain_does_not_exhaust_the_stack(value):
    with pytest.raises(ParseError, match=r"nested more than 150 deep|found ;"):
        read(f"L^{{8}}_{{a=0}}[C^{{f32,g}}_{{a}}={value};];", "C:f32[8]")


@pytest.mark.parametrize("length", range(146, 153))
def test_the_limit_of_depth_counts_what_the_reader_adds(length):
    text = f"L^{{1}}_{{a=0}}[C^{{f32,g}}=-({'1+' * length}A^{{f64,g}});];"
    try:
        program = read(text, "A:f64 -> C:f32").program
    except ParseError as error:
        assert "nested more than 150 deep" in error.message and length > 146
    else:
        assert length < 150 and parse(show(program)) == program


def test_damaged_texts_are_errors_or_well_formed_programs():
    rng = random.Random(3)
    pieces = [*"[]{}();,=+-*/<&|^_", "inf", "a", "tx", "L^{2}_{q=0}", "A^{f32,g}", "exp(", "0", "7"]
    read_anyway = 0
    for name in ("softmax", "max_pool", "argmax", "cross_entropy"):
        example = EXAMPLES[name]
        text, shapes = example.small(example.text), example.small(example.shapes)
        for _ in range(60):
            start = rng.randrange(len(text))
            damaged = text[:start] + rng.choice(pieces) * rng.randrange(2) + text[start + rng.randrange(3) :]
            try:
                program = read(damaged, shapes).program
            except ParseError as error:
                assert error.line <= 1
            else:
                assert verify(program) == () and parse(show(program)) == program
                read_anyway += 1
    assert 0 < read_anyway < 240


def command(*arguments: str, stdin: str = "") -> object:
    return CliRunner().invoke(Verbs(leirgym.VERBS), ["show", "--from", "steptp", *arguments], input=stdin)


def test_show_reads_text_files_and_standard_input(tmp_path):
    (tmp_path / "copy.txt").write_text(GOOD)
    (tmp_path / "shapes.txt").write_text("A:f32[8]\nC:f32[8]\n")
    wanted = "a:8\nA:f32[a] -> C:f32[a]\nL_a C[a] = A[a]\n"
    shapes = ("--shapes", "A:f32[8] C:f32[8]")
    assert command(GOOD, *shapes).stdout == wanted
    assert command("-", *shapes, stdin=GOOD).stdout == wanted
    assert command(str(tmp_path / "copy.txt"), "--shapes", str(tmp_path / "shapes.txt")).stdout == wanted


def test_show_notes_what_was_lost():
    result = command(GOOD.replace("L^{8}", "V^{7}").replace("8", "7"), "--shapes", "A,C:f32[7]")
    assert result.exit_code == 0 and "V_a is serial here" in result.stderr


@pytest.mark.parametrize("arguments", [(GOOD,), (GOOD[:-1], "--shapes", "A,C:f32[8]"), ("nosuch", "--shapes", "C:f32")])
def test_show_of_bad_input_exits_with_2(arguments):
    assert command(*arguments).exit_code == 2
