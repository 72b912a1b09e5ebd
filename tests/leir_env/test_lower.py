"""Compiled programs mean what the interpreter says they mean."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tvm

from envs.leir_env.build import PASSES, BuildError, Kernel, build, host_target
from envs.leir_env.generate import random_inputs, random_program
from envs.leir_env.interp import numpy_dtype, run
from envs.leir_env.ir import DType, Program
from envs.leir_env.lower import lower
from envs.leir_env.ops import OPS
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.starts import starts
from envs.leir_env.verify import verify

TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-12}


def compare(program: Program, got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Every output within what its dtype allows; integers and booleans equal."""
    for tensor in program.outputs:
        actual, wanted = got[tensor.name], expected[tensor.name]
        assert actual.shape == tensor.shape and actual.dtype == numpy_dtype(tensor.dtype)
        if not tensor.dtype.is_float:
            np.testing.assert_array_equal(actual, wanted, err_msg=show(program))
            continue
        actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
        bound = TOLERANCE[tensor.dtype]
        np.testing.assert_allclose(actual, wanted, rtol=bound, atol=bound * scale, err_msg=show(program))


def agree(program: Program | str, inputs: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Build, run, compare every output with the interpreter; return what the kernel computed."""
    program = parse(program) if isinstance(program, str) else program
    inputs = inputs or random_inputs(program, np.random.default_rng(0))
    got = build(program).run(inputs)
    compare(program, got, run(program, inputs))
    return got


def call(op: str, *args: str) -> str:
    symbol = OPS[op].symbol
    if not symbol:
        return f"{op}({','.join(args)})"
    return f"({args[0]} {symbol} {args[1]})" if len(args) == 2 else f"({symbol} {args[0]})"


def of_every_operator(dtype: str, typings: tuple[str, ...], kind: str) -> Program:
    """One output for each operator of these typings, over positive A and any B."""
    lines, outputs = [], []
    for op in OPS.values():
        if op.typing in typings and op.name != "select":
            name = op.name.capitalize().replace("_", "")
            first = "abs(A[i])" if op.name in ("log", "sqrt", "rsqrt", "pow") else "A[i]"
            value = call(op.name, *(first, "B[i]")[: op.arity])
            outputs.append((name, "bool" if op.typing in ("compare", "logic") else dtype))
            lines.append(f"{kind}_i {name}[i] = {value}")
    header = " ".join(f"{name}:{kind}[i]" for name, kind in outputs)
    return parse(f"i:16\nA,B:{dtype}[i] -> {header}\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize("kind", ["L", "V"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_every_float_operator_agrees(dtype: str, kind: str) -> None:
    agree(of_every_operator(dtype, ("arith", "float", "compare"), kind))


@pytest.mark.parametrize("kind", ["L", "V"])
@pytest.mark.parametrize("dtype", ["i8", "i32", "i64"])
def test_every_integer_operator_agrees_also_for_a_zero_divisor(dtype: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    inputs = {name: rng.integers(-9, 9, 16).astype(numpy_dtype(DType(dtype))) for name in "AB"}
    inputs["B"][:2] = 0
    agree(of_every_operator(dtype, ("arith", "integer", "compare"), kind), inputs)


@pytest.mark.parametrize("kind", ["L", "V"])
def test_every_logical_operator_agrees(kind: str) -> None:
    agree(of_every_operator("bool", ("logic",), kind))


REFERENCE = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf),
}
SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-40, 88.7, 89.0, -87.5, -103.5, 1e30, -1e30, 1.0]


def test_elementary_functions_are_accurate_to_a_few_ulp_everywhere() -> None:
    sweep = np.concatenate([np.linspace(-110, 110, 4000), np.linspace(-3, 3, 4000), np.logspace(-38, 38, 4000)])
    x = np.concatenate([SPECIAL, sweep])
    x = np.resize(x, (-(-x.size // 16), 16)).astype(np.float32)
    outputs = " ".join(f"{name.capitalize()}:f32[{x.shape[0]},v]" for name in REFERENCE)
    lines = "".join(f"L_i V_v {name.capitalize()}[i,v] = {name}(A[i,v])\n" for name in REFERENCE)
    got = build(parse(f"i:{x.shape[0]} v:16\nA:f32[i,v] -> {outputs}\n{lines}")).run({"A": x})
    for name, function in REFERENCE.items():
        with np.errstate(all="ignore"):
            exact = function(x.astype(np.float64))
            rounded = exact.astype(np.float32)
            ulps = np.abs(got[name.capitalize()] - exact) / np.spacing(np.abs(rounded)).astype(np.float64)
        same = (got[name.capitalize()] == rounded) | np.isnan(rounded) & np.isnan(got[name.capitalize()])
        worst = np.where(same, 0, ulps)
        # 1/(1+inf) is 0 where sigmoid is subnormal.
        worst[(name == "sigmoid") & (np.abs(rounded) < 1e-37)] = 0
        assert worst.max() <= (3.5 if name == "sigmoid" else 1.5), (name, x.flat[worst.argmax()])


def test_a_vectorised_loop_gives_the_bits_of_the_serial_one() -> None:
    text = "i:32\nA,B:f32[i] -> C:f32[i]\n{}_i C[i] = tanh(A[i])*exp(B[i])+sigmoid(A[i]*B[i])/erf(B[i])\n"
    serial, vector = (agree(text.format(kind))["C"] for kind in "LV")
    np.testing.assert_array_equal(serial, vector)


def test_deeply_nested_functions_build() -> None:
    value = "A[i]"
    for _ in range(25):
        value = f"tanh(exp({value})-1.0)"
    agree(f"i:4\nA:f32[i] -> C:f32[i]\nL_i C[i] = {value}\n")


@pytest.mark.parametrize(
    "body",
    [
        "L_i C[i] = A[i]*2+1",
        "L_i C[i] = A[i]*(i//3+1)",
        "L_i C[i] = A[i]/(1/3)+i/2",
        "L_i C[i] = select(i<5,i,2.5)",
        "L_i C[i] = select(i*2==i+4,1,A[i])",
        "L_i C[i] = max(A[i],-inf)+min(i,3)",
        "L_i C[i] = pow(A[i],2)+pow(2,A[i])",
        "L_i C[i] = exp(i)*A[i]",
        "V_i C[i] = A[i]*i+f32(i)",
        "L_i C[i] = A[i]*f32(100000*i*50000)",
    ],
)
def test_weak_literals_and_indices_take_the_dtype_they_meet(body: str) -> None:
    agree(f"i:16\nA:f32[i] -> C:f32[i]\n{body}\n")


def test_a_bfloat16_literal_is_rounded_before_it_is_used() -> None:
    program = parse("i:64\nA:bf16[i] -> C:bf16[i]\nL_i C[i] = A[i]*0.3\n")
    inputs = random_inputs(program, np.random.default_rng(0))
    np.testing.assert_array_equal(build(program).run(inputs)["C"], run(program, inputs)["C"])


def test_casts_agree() -> None:
    agree(
        "i:16\nA:f32[i] I:i32[i] M:bool[i] -> "
        "C:i32[i] D:f64[i] E:bool[i] F:f16[i] G:i8[i] H:f32[i] J:i64[i]\n"
        "L_i C[i] = i32(A[i]*10.0)\nL_i D[i] = f64(A[i])*f64(I[i])\nL_i E[i] = bool(I[i])\nL_i F[i] = f16(A[i])\n"
        "L_i G[i] = i8(I[i]+1)\nL_i H[i] = f32(M[i])\nL_i J[i] = i64(I[i])*4000000000+i\n"
    )


@pytest.mark.parametrize("order", list(itertools.permutations("ijk")))
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_every_accumulation_starts_from_its_identity_in_every_loop_order(order: tuple[str, ...], dtype: str) -> None:
    loops = " ".join(f"L_{name}" for name in order)
    agree(
        f"i:3 j:5 k:4\nA:{dtype}[i,k] B:{dtype}[k,j] -> C,D,E,F:{dtype}[i,j] G:{dtype}\n"
        f"{loops} C[i,j] += A[i,k] B[k,j]\n{loops} D[i,j] max= A[i,k] B[k,j]\n"
        f"{loops} E[i,j] min= A[i,k] B[k,j]\n{loops} F[i,j] *= A[i,k]+B[k,j]\n"
        f"{loops} G max= A[i,k]-B[k,j]\n"
    )


def test_booleans_accumulate() -> None:
    agree("i:4 j:3\nA:bool[i,j] -> C,D:bool[i]\nL_i,j C[i] max= A[i,j]\nL_j,i D[i] min= A[i,j]\n")


TILED = """io,ii:4 jo:3 k:10 ji:16
A:f32[16,k] B:f32[k,48] -> C:f32[16,48]
P_io L_jo [
  D:f32.l[ii,ji]
  L_k U_ii V_ji D[ii,ji] += A[4io+ii,k] B[k,16jo+ji]
  U_ii V_ji C[4io+ii,16jo+ji] = D[ii,ji]
]
"""

RAGGED = """io,ii:4 jo:3 k:7 ji:8
A:f32[13,k] B:f32[k,19] -> C:f32[13,19]
P_io L_jo U_ii L_k V_ji C[4io+ii,8jo+ji] += A[4io+ii,k] B[k,8jo+ji] if 4io+ii<13 and 8jo+ji<19
"""

PACKED = """jo:3 k:9 io:4 ii:6 ji:16 jm:2
A:f32[21,k] B:f32[k,41] -> C:f32[21,41]
P_jo [
  E:f32.l[k,ji]
  L_k V_ji E[k,ji] = B[k,16jo+ji] if 16jo+ji<41
  L_k V_ji E[k,ji] = 0.0 if 16jo+ji>=41
  L_io [
    D:f32.l[ii,ji]
    L_k U_ii V_ji D[ii,ji] += A[6io+ii,k] E[k,ji] if 6io+ii<21
    U_ii V_ji C[6io+ii,16jo+ji] = D[ii,ji] if 6io+ii<21 and 16jo+ji<41
  ]
]
L_jm C[jm,jm] += 1.0
"""


@pytest.mark.parametrize("text", [TILED, RAGGED, PACKED], ids=["tiled", "ragged", "packed"])
def test_matmuls_in_tiles_agree(text: str) -> None:
    agree(text)


@pytest.mark.parametrize(
    "body",
    [
        "L_i C[i] = select(i<7,A[i+1],0.5)",
        "V_i C[i] = select(i<7,A[i+1],0.5)",
        "V_i C[i] = select(i>=2 and i<6,select(i==3,A[i-2],A[i+2]),A[i])",
        "L_i C[i] = A[i+1] if i<7\nC[7] = 0.0",
        "V_i C[i] = A[i+1] if i<7\nC[7] = 0.0",
        "V_i C[i] += A[i] if A[i]>0.0",
        "L_i C[i] += A[i+1] if A[i]>0.0 and i<7",
        "V_i C[i] = select(I[i]<7,A[I[i]],0.0)",
        "L_i C[7-i] = A[I[i]]",
        "V_i C[i] = A[(3i+1)%8]",
        "L_i C[i] += A[i//2] if i%2==0",
    ],
)
def test_guarded_and_indirect_reads_agree(body: str) -> None:
    agree(f"i:8\nA:f32[i] I:i32[i] -> C:f32[i]\n{body}\n")


def test_an_arm_that_is_not_chosen_is_never_read() -> None:
    # Far beyond what is mapped: reading it would end the process.
    far = 2**29
    for kind in "LV":
        program = parse(f"i:8\nA:f32[i] I:i32[i] -> C:f32[i]\n{kind}_i C[i] = select(I[i]<8,A[I[i]],1.0)\n")
        got = build(program).run({"A": np.zeros(8, np.float32), "I": np.array([0, far] * 4, np.int32)})
        np.testing.assert_array_equal(got["C"], [0, 1] * 4)


@pytest.mark.parametrize("outer", ["L_i", "P_i", "U_i", "L_h P_i", "P_h,i"])
@pytest.mark.parametrize("size", [5, 64, 700])
def test_a_temporary_is_fresh_in_every_execution_of_its_block(outer: str, size: int) -> None:
    extra, dims, sub = ("h:2 ", "h,", "h,") if "h" in outer else ("", "", "")
    agree(
        f"{extra}i:3 j:{size}\nA:f32[{dims}i,j] -> C:f32[{dims}i,j]\n{outer} [\n  D:f32[j] E:f32\n"
        f"  L_j D[j] += A[{sub}i,j]\n  L_j E max= D[j]\n  L_j C[{sub}i,j] = D[{size - 1}-j]-E\n]\n"
    )


def test_nested_loops_of_one_kind_agree() -> None:
    agree("i,j,k:4\nA:f32[i,j,k] -> C:f32[i,j,k]\nV_i,j,k C[i,j,k] = A[i,j,k]*2.0\n")
    agree("i,j,k:4\nA:f32[i,j,k] -> C:f32[i,j,k]\nP_i U_j P_k C[i,j,k] = A[i,j,k]*2.0\n")
    agree("i,j,k:4\nA:f32[i,j,k] -> C:f32[i,j]\nV_i U_j L_k C[i,j] += A[i,j,k]\n")


@pytest.mark.parametrize("extent", [1, 3, 7, 13])
def test_odd_extents_agree(extent: int) -> None:
    agree(f"i:{extent} j:3\nA:f32[i,j] -> C:f32[i] D:f32\nL_j V_i C[i] += A[i,j]\nU_i L_j D += A[i,j]\n")


def test_tensors_of_no_dimension_agree() -> None:
    agree("i:8\nA:f32[i] S:f32 -> C:f32; D:f32\nL_i D += A[i]*S\nC = D/8\n")


@pytest.mark.parametrize(
    "text",
    [
        # T is read at this iteration before it is accumulated.
        "i:4 k:3\nA:f32[i,k] -> C,T:f32[i]\nL_i [\n  C[i] = T[i]+1.0\n  L_k T[i] += A[i,k]\n]\n",
        # T is read at other iterations before they are accumulated.
        "i:4 k:3\nA:f32[i,k] -> C,T:f32[i]\nL_i [\n  L_k T[i] += A[i,k]\n  C[i] = T[3-i]\n]\n",
        # T is accumulated at another place afterwards.
        "i:4 k:3\nA:f32[i,k] -> T:f32[i]\nL_i [\n  L_k T[i] += A[i,k]\n  T[3-i] += 1.0\n]\n",
        # T is read by a later nest.
        "i:4 k:3\nA:f32[i,k] -> C,T:f32[i]\nP_i L_k T[i] += A[i,k]\nL_i,k C[i] += T[3-i]\nL_i T[i] max= C[i]\n",
        # T is not covered by the first accumulation.
        "i:4 k:3\nA:f32[i,k] -> T:f32[9]\nL_i,k T[2i] += A[i,k]\nL_i T[2i+1] += 1.0\n",
        # The diagonal only.
        "i:4 k:3\nA:f32[i,k] -> T:f32[i,i]\nL_i,k T[i,i] += A[i,k]\n",
        # A reduction loop outside.
        "i:4 k:3\nA:f32[i,k] -> C,T:f32[i]\nL_k [\n  L_i T[i] += A[i,k]\n  L_i C[i] = T[i]\n]\n",
        # Guards on the first accumulation.
        "i:4 k:3\nA:f32[i,k] -> T:f32[i]\nL_i,k T[i] += A[i,k] if k<i\n",
        # Two digits, the lower one outside.
        "io,k:3 ii:4\nA:f32[10,k] -> T:f32[10]\nL_ii,io,k T[4io+ii] += A[4io+ii,k] if 4io+ii<10\n",
        # Indirect accumulation.
        "i:4 k:6\nA:f32[k] I:i32[k] -> T:f32[i]\nL_k T[I[k]] += A[k]\nL_i T[i] += 0.0\n",
        # The start must be repeated in every execution of the block.
        "r:2 i:4 k:3\nA:f32[r,i,k] -> C:f32[r,i]\nL_r [\n  T:f32[i]\n  L_k,i T[i] += A[r,i,k]\n"
        "  L_i C[r,i] = T[i]\n]\n",
    ],
)
def test_starts_agree_where_they_may_not_sink(text: str) -> None:
    program = parse(text)
    inputs = random_inputs(program, np.random.default_rng(0))
    if "I" in inputs:
        inputs["I"] = np.array([0, 1, 0, 3, 3, 2], np.int32)
    agree(program, inputs)


def places(text: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Where each tensor starts: the path, and the loops over what is still free."""
    return {
        start.tensor.name: (path, " ".join(f"{loop.kind}_{loop.index}" for loop in start.loops))
        for path, entries in starts(parse(text)).items()
        for start in entries
    }


def test_a_start_sinks_to_just_outside_the_first_loop_that_does_not_index_it() -> None:
    matmul = "i,j,k:4\nA:f32[i,k] B:f32[k,j] -> C:f32[i,j]\n{} C[i,j] += A[i,k] B[k,j]\n"
    assert places(matmul.format("L_i,j,k")) == {"C": ((0, 0, 0), "")}
    assert places(matmul.format("P_i L_k V_j")) == {"C": ((0, 0), "V_j")}
    assert places(matmul.format("L_k,i,j")) == {"C": ((0,), "L_i L_j")}
    assert places(TILED)["D"] == ((0, 0, 0), "U_ii V_ji")
    assert places(RAGGED)["C"] == ((0, 0, 0), "U_ii V_ji")


def test_a_start_stays_out_of_a_loop_where_another_iteration_uses_the_element() -> None:
    other = "i:4 k:3\nA:f32[i,k] -> C,T:f32[i]\nL_i [\n  L_k T[i] += A[i,k]\n  C[i] = T[3-i]\n]\n"
    assert places(other)["T"][0] == (0,)
    first = "i:4 k:3\nA:f32[i,k] -> C,T:f32[i]\nL_i C[i] = T[3-i]\nL_i,k T[i] += A[i,k]\n"
    assert places(first)["T"] == ((0,), "L_i")
    later = "i:4 k:3\nA:f32[i,k] -> T:f32[i]\nL_i,k T[i] += A[i,k]\nL_i T[i] += T[3-i]\n"
    assert places(later)["T"] == ((0, 0), "")


def all_agree(programs: list[Program]) -> None:
    """Ten in a module: most of the time of a build is the same for any number of functions."""
    while programs:
        group, programs = programs[:10], programs[10:]
        functions = {f"f{n}": lower(p).with_attr("global_symbol", f"f{n}") for n, p in enumerate(group)}
        with tvm.transform.PassContext(config=PASSES):
            module = tvm.compile(tvm.IRModule(functions), target=host_target()).mod
        for number, program in enumerate(group):
            inputs = random_inputs(program, np.random.default_rng(number))
            kernel = Kernel(program, module[f"f{number}"], module)
            compare(program, kernel.run(inputs), run(program, inputs))


def test_random_programs_agree() -> None:
    all_agree([random_program(np.random.default_rng(seed)) for seed in range(200)])


def tiles_with_tails(rng: np.random.Generator) -> Program:
    """A matmul in tiles that need not divide, its six loops in any order and of any kind, with any guards."""
    sizes = [int(size) for size in rng.integers(1, 40, 3)]
    tiles = [int(tile) for tile in rng.choice([2, 3, 4, 8, 16], 3)]
    counts = [-(-size // tile) for size, tile in zip(sizes, tiles, strict=True)]
    i, j, k = (f"{tile}{name}o+{name}i" for tile, name in zip(tiles, "ijk", strict=True))
    loops = [str(name) for name in rng.permutation(["io", "jo", "ko", "ii", "ji", "ki"])]
    kinds = dict.fromkeys(loops, "L")
    if rng.random() < 0.7:
        loops.sort(key="ji".__eq__)
        kinds["ji"] = "V"
    for name, tile in (("ii", tiles[0]), ("ki", tiles[2])):
        kinds[name] = "U" if tile <= 4 and rng.random() < 0.5 else "L"
    if loops[0] in ("io", "jo"):
        kinds[loops[0]] = str(rng.choice(["L", "P"]))
    tails = zip((i, j, k), tiles, counts, sizes, strict=True)
    guards = [f"{index}<{size}" for index, tile, count, size in tails if tile * count > size]
    extra = [f"{j}<={i}", f"{j}>=3", f"{k}!=2", f"{i}>{j}+1"]
    guards += [guard for guard in extra if rng.random() < 0.15]
    value = f"A[{i},{k}] B[{k},{j}]"
    if rng.random() < 0.3:
        value = f"exp(min({value},1.0))"
    if rng.random() < 0.3:
        value += f"+select({j}>=1 and {j}<{sizes[1]},B[{k},{j}-1],0.5)"
    domains = " ".join(f"{n}o:{c} {n}i:{t}" for n, c, t in zip("ijk", counts, tiles, strict=True))
    nest = " ".join(f"{kinds[name]}_{name}" for name in loops)
    guard = f" if {' and '.join(str(g) for g in rng.permutation(guards))}" if guards else ""
    m, n, q = sizes
    return parse(
        f"{domains}\nA:f32[{m},{q}] B:f32[{q},{n}] -> C:f32[{m},{n}]\n"
        f"{nest} C[{i},{j}] {rng.choice(['+=', 'max='])} {value}{guard}\n"
    )


def test_tails_agree_in_every_order_and_kind_of_loops() -> None:
    all_agree([tiles_with_tails(np.random.default_rng(seed)) for seed in range(50)])


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("i:8\nA:f32[i] -> C:f32[i]\nB^tx_i C[i] = A[i]\n", "bound_on_cpu", "loop i is bound to tx"),
        ("i:8\nA:f32[i] B:f64[i] -> C:f32[i]\nL_i C[i] = A[i]*B[i]\n", "mixed_dtypes", "mixes f32 and f64"),
        ("i:8\nA:i32[i] -> C:i32[i]\nL_i C[i] = A[i]*0.5\n", "mixed_dtypes", "0.5 meets i32"),
    ],
)
def test_what_a_cpu_cannot_express_is_a_located_error(text: str, code: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        lower(parse(text))
    assert caught.value.code == code


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(BuildError, match="metal is no target"):
        lower(parse("-> C:f32\nC = 1.0\n"), "metal")


def test_a_temporary_in_an_unrolled_loop_that_is_cut_at_its_tail_is_declared_once_in_each_case() -> None:
    program = parse(
        "io:3 ii:6 k:5\nA:f32[16,k] -> C:f32[16]\n"
        "L_io U_ii [\n  D:f32.l\n  L_k D += A[6io+ii,k] if 6io+ii<16\n  C[6io+ii] = D if 6io+ii<16\n]\n"
    )
    assert verify(program) == ()
    inputs = {"A": np.arange(80, dtype=np.float32).reshape(16, 5)}
    np.testing.assert_array_equal(build(program).run(inputs)["C"], run(program, inputs)["C"])


def test_a_tensor_that_nothing_reads_shares_no_memory_with_one_that_matters():
    # TVM's StorageRewrite gave G's memory to H, which is written beside it.
    program = parse(
        "i:9 j:2\nA,B:f32[i,j] -> C:f32[i,j]; G:f32[i,j] H:f32[j,i]\n"
        "L_i,j [\n  G[i,j] = A[i,j] B[i,j]\n  H[j,i] = A[i,j]+B[i,j]\n]\nL_i,j C[i,j] = H[j,i]\n"
    )
    inputs = random_inputs(program, np.random.default_rng(0))
    np.testing.assert_array_equal(build(program).run(inputs)["C"], inputs["A"] + inputs["B"])


@pytest.mark.parametrize("kind", ["U", "V"])
def test_lanes_that_a_guard_excludes_still_find_their_accumulator_at_its_start(kind):
    program = parse(
        "io,k:2 c:4 i2:1\nA:f32[10] -> C:f32[5]\n"
        f"L_io {kind}_c L_k C[4io+c] += A[8io+2c+k] if 4io+c<4\nL_i2,k C[i2+4] += A[2*(i2+4)+k]\n"
    )
    values = np.arange(10, dtype=np.float32)
    np.testing.assert_array_equal(build(program).run({"A": values})["C"], [1, 5, 9, 13, 17])
