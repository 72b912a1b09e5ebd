"""Elementary functions of float32 that vectorise, as LLVM IR: libm would be called lane by lane.

TIR sees an opaque operator (`leir.exp`); `LowerIntrin` makes it a call of `leir_exp_8` for eight lanes, and
LLVM inlines the definition from `definitions`. Errors stay below 1.5 ulp (sigmoid: 3.1) over the whole
range, subnormal results included; inf and nan behave as IEEE 754 asks. The `fast_` ones stay below 8 ulp (exp: 4),
and what would be subnormal may be zero. Coefficients are weighted minimax
fits; `x - n*log(2)` is reduced by two constants (Cody and Waite, Software Manual for the Elementary
Functions, 1980).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable, Sequence

from tvm import tirx

from envs.leir_env import intrinsics

_LOG2E = math.log2(math.e)
_LN2_HIGH = 0.693359375
"""The first ten bits of log(2): n*_LN2_HIGH is exact for every exponent n."""
_LN2_LOW = math.log(2) - _LN2_HIGH
_ROUND = 1.5 * 2**23
"""Adding it to |t| < 2**22 leaves round(t) in the low bits of the sum."""
_ROUND_BITS = 0x4B400000
_SQRT_HALF_BITS = 0x3F3504F3
_ONE_BITS = 0x3F800000

_EXP = (
    0.4999999305071235,
    0.16666514791278042,
    0.041668456789802,
    0.008369418846534188,
    0.001381314439282841,
)
"""(exp(r) - 1 - r) / r^2 for |r| <= 0.35, relative error of exp 3.3e-9."""
_LOG = (
    0.333333126039925,
    -0.25000009599639866,
    0.20002118662924462,
    -0.16667995843338693,
    0.14219552278436287,
    -0.12405589062119539,
    0.1188816297177887,
    -0.11675651221095165,
    0.06746638272459209,
)
"""(log(1+f) - f + f^2/2) / f^3 for 1+f between sqrt(1/2) and sqrt(2), relative error of log 7.5e-10."""
_TANH = (
    -0.3333333172077837,
    0.13333245370970195,
    -0.05395216694411985,
    0.021732721197529826,
    -0.008262745027874361,
    0.0022269744908242363,
)
"""(tanh(x) - x) / x^3 in x^2 for |x| <= 0.6, relative error of tanh 9.3e-11."""
_ERF = (
    0.12837916572670843,
    -0.3761262582421873,
    0.11283585148452918,
    -0.026853811928566118,
    0.005188327672935172,
    -0.0008010193512554831,
    7.853860980421012e-05,
)
"""erf(x)/x - 1 in x^2 for |x| <= 1, relative error of erf 1.2e-9."""
_ERFC = (
    -0.00018846651051534515,
    1.1295803057620433,
    0.6332164072605934,
    0.10842208930794178,
    -0.025210333831153887,
    0.0042052827549877245,
    -0.00044147228550854616,
    2.1697586035584666e-05,
)
"""-log(erfc(x)) for 1 <= x <= 4, relative error of erf 2.1e-11."""


_FAST_EXP = (0.499992238308713, 0.16667119421679596, 0.041891283648579504, 0.008312398988846057)
"""As _EXP, relative error of exp 1.1e-7."""
_FAST_TANH = (
    (0.9999999790209758, 0.13379717144555595, 0.0034940336032278415, 2.05834657136178e-05, 1.3319051244670095e-08),
    (1.0, 0.46713032390796805, 0.025871069576452528, 0.0003283091278514575, 7.762010775047817e-07),
)
"""Numerator and denominator of tanh(x)/x in x^2 for |x| <= 9.02, relative error 2.1e-8."""
_FAST_ERF = (
    (
        1.1283791457743055,
        0.19059280194728467,
        0.05276918895242077,
        0.0037725152411789004,
        0.00028484373652516926,
        2.0460463999710664e-06,
    ),
    (
        1.0,
        0.5022412034063037,
        0.11418234304858321,
        0.01498312547691467,
        0.001163851283947349,
        3.8047985623238844e-05,
    ),
)
"""The same of erf(x)/x for |x| <= 3.925, relative error 1.9e-8."""
_FAST_LEAST = -86.98
"""The fast exp of less is zero: 1.7e-38 is little above the least normal number."""


class _Emitter:
    """Writes straight-line LLVM IR over `lanes` floats; values are the names of its registers."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.lines: list[str] = []
        self.declared: set[str] = set()

    def type(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def f32(self, value: float) -> str:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
        return self._splat("float", f"0x{struct.pack('>d', rounded).hex()}")

    def i32(self, value: int) -> str:
        return self._splat("i32", str(value))

    def _splat(self, element: str, text: str) -> str:
        return text if self.lanes == 1 else f"splat ({element} {text})"

    def emit(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def binary(self, op: str, left: str, right: str, element: str = "float") -> str:
        return self.emit(f"{op} {self.type(element)} {left}, {right}")

    def add(self, left: str, right: str) -> str:
        return self.binary("fadd", left, right)

    def sub(self, left: str, right: str) -> str:
        return self.binary("fsub", left, right)

    def mul(self, left: str, right: str) -> str:
        return self.binary("fmul", left, right)

    def div(self, left: str, right: str) -> str:
        return self.binary("fdiv", left, right)

    def fma(self, a: str, b: str, c: str) -> str:
        return self._intrinsic("fmuladd", a, b, c)

    def abs(self, x: str) -> str:
        return self._intrinsic("fabs", x)

    def _intrinsic(self, name: str, *args: str) -> str:
        suffix = "f32" if self.lanes == 1 else f"v{self.lanes}f32"
        kind = self.type("float")
        self.declared.add(f"declare {kind} @llvm.{name}.{suffix}({', '.join([kind] * len(args))})")
        return self.emit(f"call {kind} @llvm.{name}.{suffix}({', '.join(f'{kind} {arg}' for arg in args)})")

    def select(self, predicate: str, left: str, right: str, yes: str, no: str) -> str:
        """`yes` where the comparison of `left` and `right` holds, `no` elsewhere."""
        chosen = self.emit(f"fcmp {predicate} {self.type('float')} {left}, {right}")
        kind = self.type("float")
        return self.emit(f"select {self.type('i1')} {chosen}, {kind} {yes}, {kind} {no}")

    def clamp(self, x: str, low: float, high: float) -> str:
        """Keep x within [low, high]; nan stays."""
        x = self.select("olt", x, self.f32(low), self.f32(low), x)
        return self.select("ogt", x, self.f32(high), self.f32(high), x)

    def bits(self, x: str) -> str:
        return self.emit(f"bitcast {self.type('float')} {x} to {self.type('i32')}")

    def from_bits(self, x: str) -> str:
        return self.emit(f"bitcast {self.type('i32')} {x} to {self.type('float')}")

    def to_float(self, x: str) -> str:
        return self.emit(f"sitofp {self.type('i32')} {x} to {self.type('float')}")

    def integer(self, op: str, left: str, right: int | str) -> str:
        return self.binary(op, left, right if isinstance(right, str) else self.i32(right), "i32")

    def horner(self, coefficients: Sequence[float], x: str) -> str:
        value = self.f32(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.f32(coefficient))
        return value

    def with_sign(self, magnitude: str, x: str) -> str:
        sign = self.integer("and", self.bits(x), -(2**31))
        return self.from_bits(self.integer("or", self.bits(magnitude), sign))

    def power_of_two(self, n: str) -> str:
        return self.from_bits(self.integer("shl", self.integer("add", n, 127), 23))


def _exp(e: _Emitter, x: str) -> str:
    x = e.clamp(x, -104.0, 89.0)
    rounded = e.fma(x, e.f32(_LOG2E), e.f32(_ROUND))
    n = e.sub(rounded, e.f32(_ROUND))
    k = e.integer("sub", e.bits(rounded), _ROUND_BITS)
    r = e.fma(n, e.f32(-_LN2_LOW), e.fma(n, e.f32(-_LN2_HIGH), x))
    p = e.fma(e.horner(_EXP, r), e.mul(r, r), e.add(r, e.f32(1.0)))
    # Two factors, so that subnormal results and the largest finite ones need no special case.
    half = e.integer("ashr", k, 1)
    rest = e.integer("sub", k, half)
    return e.mul(e.mul(p, e.power_of_two(half)), e.power_of_two(rest))


def _sigmoid(e: _Emitter, x: str) -> str:
    one = e.f32(1.0)
    return e.div(one, e.add(one, _exp(e, e.mul(x, e.f32(-1.0)))))


def _tanh(e: _Emitter, x: str) -> str:
    magnitude = e.abs(x)
    square = e.mul(x, x)
    small = e.fma(e.mul(e.horner(_TANH, square), square), x, x)
    one = e.f32(1.0)
    large = e.sub(one, e.div(e.f32(2.0), e.add(_exp(e, e.add(magnitude, magnitude)), one)))
    return e.select("olt", magnitude, e.f32(0.6), small, e.with_sign(large, x))


def _erf(e: _Emitter, x: str) -> str:
    magnitude = e.abs(x)
    small = e.fma(e.horner(_ERF, e.mul(x, x)), x, x)
    tail = _exp(e, e.mul(e.horner(_ERFC, e.clamp(magnitude, 0.0, 4.0)), e.f32(-1.0)))
    return e.select("olt", magnitude, e.f32(1.0), small, e.with_sign(e.sub(e.f32(1.0), tail), x))


def _log(e: _Emitter, x: str) -> str:
    tiny, zero, infinity = e.f32(2.0**-126), e.f32(0.0), e.f32(math.inf)
    scaled = e.select("olt", x, tiny, e.mul(x, e.f32(2.0**23)), x)
    bias = e.select("olt", x, tiny, e.f32(-23.0), zero)
    # Adding 1 - sqrt(1/2) to the bits carries into the exponent exactly where the mantissa reaches sqrt(2).
    shifted = e.integer("add", e.bits(scaled), _ONE_BITS - _SQRT_HALF_BITS)
    mantissa = e.integer("add", e.integer("and", shifted, 0x007FFFFF), _SQRT_HALF_BITS)
    f = e.sub(e.from_bits(mantissa), e.f32(1.0))
    n = e.add(e.to_float(e.integer("sub", e.integer("ashr", shifted, 23), 127)), bias)
    square = e.mul(f, f)
    tail = e.fma(e.mul(e.horner(_LOG, f), f), square, e.mul(n, e.f32(_LN2_LOW)))
    value = e.fma(n, e.f32(_LN2_HIGH), e.add(f, e.fma(square, e.f32(-0.5), tail)))
    value = e.select("olt", x, infinity, value, x)
    outside = e.select("oeq", x, zero, e.f32(-math.inf), e.f32(math.nan))
    return e.select("ogt", x, zero, value, outside)


def _fast_exp(e: _Emitter, x: str) -> str:
    """As `_exp`, with one factor 2**(n-1) for the exponent; what would be subnormal, or nearly so, is zero."""
    bounded = e.select("ogt", x, e.f32(89.0), e.f32(89.0), x)
    rounded = e.fma(bounded, e.f32(_LOG2E), e.f32(_ROUND + 126))
    n = e.sub(rounded, e.f32(_ROUND + 126))
    scale = e.from_bits(e.integer("shl", e.bits(rounded), 23))
    r = e.fma(n, e.f32(-_LN2_LOW), e.fma(n, e.f32(-_LN2_HIGH), bounded))
    two = e.f32(2.0)
    p = e.fma(e.horner([2 * c for c in _FAST_EXP], r), e.mul(r, r), e.fma(r, two, two))
    return e.select("olt", x, e.f32(_FAST_LEAST), e.f32(0.0), e.mul(p, scale))


def _fast_sigmoid(e: _Emitter, x: str) -> str:
    one = e.f32(1.0)
    return e.div(one, e.add(one, _fast_exp(e, e.mul(x, e.f32(-1.0)))))


def _rational(e: _Emitter, x: str, limit: float, form: tuple[Sequence[float], Sequence[float]]) -> str:
    """x times a quotient of polynomials in x^2."""
    bounded = e.clamp(x, -limit, limit)
    square = e.mul(bounded, bounded)
    above, below = (e.horner(side, square) for side in form)
    return e.div(e.mul(bounded, above), below)


def _fast_tanh(e: _Emitter, x: str) -> str:
    return _rational(e, x, 9.02, _FAST_TANH)


def _fast_erf(e: _Emitter, x: str) -> str:
    return _rational(e, x, 3.925, _FAST_ERF)


FUNCTIONS: dict[str, Callable[[_Emitter, str], str]] = {
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "fast_exp": _fast_exp,
    "fast_tanh": _fast_tanh,
    "fast_erf": _fast_erf,
    "fast_sigmoid": _fast_sigmoid,
}


def definitions(functions: Iterable[str], lanes: Iterable[int]) -> str:
    """Return LLVM IR that defines the functions for scalars and for vectors of the given lanes."""
    texts: list[str] = []
    declared: set[str] = set()
    for count in sorted({1, *lanes}):
        for name in sorted(functions):
            text, needs = _definition(name, count)
            texts.append(text)
            declared |= needs
    return "\n".join([*texts, *sorted(declared)])


@functools.cache
def _definition(name: str, lanes: int) -> tuple[str, frozenset[str]]:
    emitter = _Emitter(lanes)
    kind = emitter.type("float")
    result = FUNCTIONS[name](emitter, "%x")
    body = "\n".join(emitter.lines)
    text = f"define {kind} @leir_{name}_{lanes}({kind} %x) {{\n{body}\n  ret {kind} {result}\n}}"
    return text, frozenset(emitter.declared)


def call(name: str, x: tirx.Expr) -> tirx.Expr:
    """Apply an elementary function to a float32 scalar."""
    return intrinsics.call(name, _expansion(name), x)


@functools.cache
def _expansion(name: str) -> intrinsics.Expand:
    """Turn the operator into a call of its definition for as many lanes as it has."""

    def expand(node: tirx.Expr) -> tirx.Expr:
        return tirx.call_pure_extern(node.ty, f"leir_{name}_{node.ty.dtype.lanes}", *node.args)

    return expand
