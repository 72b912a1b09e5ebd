"""Small programs with one pattern each, in any size and dtype: a suite for what the other suites never show.

`leir://patterns/log_sum?n=16&dtype=f64` is a workload like any other. The property tests and the random walks
of `leirgym bench actions` start from patterns of random size, so that every strategy finds its prey.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Value = int | str

DTYPES = ("f32", "f64", "f16")
MAX_EXTENT = 65536


@dataclass(frozen=True, slots=True)
class Pattern:
    """A family of programs by size and dtype."""

    make: Callable[..., str]
    """LEIR text for given parameters."""
    defaults: Mapping[str, Value]
    """Parameters by name: extents, and `dtype`."""

    def text(self, **parameters: Value) -> str:
        """The program with these parameters in place of the defaults."""
        return self.make(**{**self.defaults, **parameters})

    def read(self, given: Mapping[str, str]) -> dict[str, Value]:
        """Parameters as they are spelled in a URI. Raises ValueError."""
        found: dict[str, Value] = {}
        for name, text in given.items():
            if name not in self.defaults:
                raise ValueError(f"there is no parameter {name[:40]}, but {', '.join(self.defaults)}")
            if name == "dtype":
                if text not in DTYPES:
                    raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {text[:40]}")
                found[name] = text
            elif not text.isdecimal() or not 0 < int(text[:9]) <= MAX_EXTENT or len(text) > 9:
                raise ValueError(f"{name} is an integer from 1 to {MAX_EXTENT}, not {text[:40]}")
            else:
                found[name] = int(text)
        return found

    def draw(self, rng: np.random.Generator) -> str:
        """The program at a random small size, odd ones included, in a random dtype."""
        drawn: dict[str, Value] = {
            name: str(rng.choice(DTYPES)) if name == "dtype" else int(rng.integers(1, 10)) for name in self.defaults
        }
        return self.make(**drawn)


PATTERNS: dict[str, Pattern] = {}
"""Every pattern by name."""


def _pattern(make: Callable[..., str]) -> Callable[..., str]:
    parameters = inspect.signature(make).parameters
    PATTERNS[make.__name__] = Pattern(make, {name: parameter.default for name, parameter in parameters.items()})
    return make


@_pattern
def softmax_rows(m: int = 8, n: int = 96, dtype: str = "f32") -> str:
    """Softmax of short rows."""
    return (
        f"i:{m} j:{n}\nA:{dtype}[i,j] -> C:{dtype}[i,j]; D,E:{dtype}[i]\n"
        "L_i L_j D_i max= A_{i,j}\n"
        "L_i L_j E_i += exp(A_{i,j}-D_i)\n"
        "L_i L_j C_{i,j} = exp(A_{i,j}-D_i)/E_i\n"
    )


@_pattern
def twin_maps(m: int = 12, n: int = 20, dtype: str = "f32") -> str:
    """The same function of two inputs."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i,j]\n"
        "L_i L_j C_{i,j} = tanh(A_{i,j})\n"
        "L_i L_j D_{i,j} = tanh(B_{i,j})\n"
    )


@_pattern
def transposed_batches(b: int = 4, m: int = 24, n: int = 20, k: int = 28, dtype: str = "f32") -> str:
    """A product of batches of matrices, the first of them stored transposed."""
    return (
        f"h:{b} i:{m} j:{n} k:{k}\nA:{dtype}[h,k,i] B:{dtype}[h,k,j] -> C:{dtype}[h,i,j]\n"
        "L_h L_i L_j L_k C_{h,i,j} += A_{h,k,i} B_{h,k,j}\n"
    )


@_pattern
def strided_windows(m: int = 24, n: int = 16, p: int = 3, dtype: str = "f32") -> str:
    """Sums over windows that overlap."""
    return f"i:{m} j:{n} k:{p}\nA:{dtype}[{2 * m + p - 2},j] -> C:{dtype}[i,j]\nL_i L_j L_k C_{{i,j}} += A_{{2i+k,j}}\n"


@_pattern
def polynomials(n: int = 256, dtype: str = "f32") -> str:
    """Sums of products with common factors, and products of sums."""
    return (
        f"i:{n}\nA,B,C:{dtype}[i] -> D,E,F:{dtype}[i]\n"
        "L_i D_i = A_i B_i+A_i C_i\n"
        "L_i E_i = A_i B_i+A_i C_i+B_i\n"
        "L_i F_i = (A_i+B_i)*(B_i+C_i)*0.25+A_i*(C_i+0.5)\n"
    )


@_pattern
def fractions(n: int = 256, dtype: str = "f32") -> str:
    """Quotients by what is never zero."""
    return (
        f"i:{n}\nA,B:{dtype}[i] -> C,D,E:{dtype}[i]; F:{dtype}[i]\n"
        "L_i F_i = sigmoid(A_i)+0.5\n"
        "L_i C_i = A_i/F_i+B_i/F_i\n"
        "L_i D_i = (A_i+B_i)/(abs(tanh(B_i))+1)\n"
        "L_i E_i = A_i F_i/((B_i B_i+1)*F_i)\n"
    )


@_pattern
def powers_and_logs(n: int = 256, dtype: str = "f32") -> str:
    """Products of exponentials and powers, logarithms of products and sums of logarithms."""
    return (
        f"i:{n}\nA,B:{dtype}[i] -> C,D,E,F:{dtype}[i]\n"
        "L_i C_i = exp(-abs(A_i))*exp(-abs(B_i))\n"
        "L_i D_i = pow(abs(A_i)+1,1.5)*exp(-abs(A_i)-abs(B_i))\n"
        "L_i E_i = log(sigmoid(A_i)*(abs(B_i)+1))\n"
        "L_i F_i = log(sigmoid(A_i)+1)+log(sigmoid(B_i)+1)\n"
    )


@_pattern
def cell_gates(m: int = 16, n: int = 24, k: int = 32, dtype: str = "f32") -> str:
    """Four linear layers of one input, as in a recurrent cell."""
    return (
        f"i:{m} j:{n} k:{k}\nA:{dtype}[i,k] | B,C,D,E:{dtype}[j,k] -> F,G,H,J:{dtype}[i,j]\n"
        "L_i L_j L_k F_{i,j} += A_{i,k} B_{j,k}\n"
        "L_i L_j L_k G_{i,j} += A_{i,k} C_{j,k}\n"
        "L_i L_j L_k H_{i,j} += A_{i,k} D_{j,k}\n"
        "L_i L_j L_k J_{i,j} += A_{i,k} E_{j,k}\n"
    )


@_pattern
def twin_sums(m: int = 16, n: int = 64, dtype: str = "f32") -> str:
    """The same sum over the rows of two inputs, and a common factor of both."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D,E:{dtype}[i]\n"
        "L_i L_j C_i += sigmoid(A_{i,j})\n"
        "L_i L_j D_i += sigmoid(B_{i,j})\n"
        "L_i E_i = C_i*tanh(D_i)+D_i*tanh(D_i)\n"
    )


@_pattern
def leftovers(m: int = 8, n: int = 64, dtype: str = "f32") -> str:
    """Results that nothing reads, the last of a chain and by themselves."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C:{dtype}[i,j]; D:{dtype}[i] E,F,G:{dtype}[i,j]\n"
        "L_i L_j D_i max= A_{i,j}\n"
        "L_i L_j E_{i,j} = A_{i,j}-D_i\n"
        "L_i L_j F_{i,j} = sigmoid(E_{i,j})\n"
        "L_i L_j [\n  G_{i,j} = A_{i,j}*B_{i,j}\n  C_{i,j} = A_{i,j}+B_{i,j}\n]\n"
    )


@_pattern
def overwritten(m: int = 8, n: int = 64, dtype: str = "f32") -> str:
    """Results that others take the place of before anything reads them."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i,j]; E:{dtype}[i,j]\n"
        "L_i L_j C_{i,j} = 0\n"
        "L_i L_j E_{i,j} = tanh(A_{i,j})\n"
        "L_i [\n  L_j D_{i,j} = A_{i,j}\n  L_j D_{i,j} = E_{i,j}*B_{i,j}\n]\n"
        "L_i L_j E_{i,j} = A_{i,j}-B_{i,j}\n"
        "L_i L_j C_{i,j} = E_{i,j}*D_{i,j}\n"
    )


@_pattern
def tile_maxima(m: int = 16, n: int = 8, t: int = 16, dtype: str = "f32") -> str:
    """Softmax whose maximum is taken tile by tile."""
    place = f"i,{t}j+k" if t > 1 else "i,j+k"
    return (
        f"i:{m} j:{n} k:{t}\nA:{dtype}[i,{n * t}] -> C:{dtype}[i,{n * t}]; D:{dtype}[i,j] E,F:{dtype}[i]\n"
        f"L_i L_j L_k D_{{i,j}} max= A_{{{place}}}\n"
        "L_i L_j E_i max= D_{i,j}\n"
        f"L_i L_j L_k F_i += exp(A_{{{place}}}-E_i)\n"
        f"L_i L_j L_k C_{{{place}}} = exp(A_{{{place}}}-E_i)/F_i\n"
    )


@_pattern
def gates(n: int = 256, dtype: str = "f32") -> str:
    """Bounded gates next to values that don't use them."""
    return (
        f"i:{n}\nA,B:{dtype}[i] -> C,D,E,F:{dtype}[i]\n"
        "L_i E_i = sigmoid(A_i)+0.5\n"
        "L_i F_i = tanh(B_i)\n"
        "L_i C_i = A_i*B_i\n"
        "L_i D_i = B_i*B_i+1\n"
    )


@_pattern
def staged_tiles(m: int = 8, n: int = 16, t: int = 16, dtype: str = "f32") -> str:
    """Rows worked on tile by tile, each tile copied to a buffer first."""
    place = f"i,{t}j+k" if t > 1 else "i,j+k"
    return (
        f"i:{m} j:{n} k:{t}\nA:{dtype}[i,{n * t}] B:{dtype}[k] -> C,D:{dtype}[i,j]\n"
        "L_i L_j [\n"
        f"  E:{dtype}.l[k]\n"
        f"  L_k E_k = A_{{{place}}}\n"
        "  L_k C_{i,j} += E_k B_k\n"
        "  L_k D_{i,j} max= E_k\n"
        "]\n"
    )


@_pattern
def attention_rows(m: int = 16, n: int = 64, d: int = 16, dtype: str = "f32") -> str:
    """Scores, softmax and the product with the values."""
    return (
        f"i:{m} k:{n} d:{d}\n"
        f"A:{dtype}[i,d] B,C:{dtype}[k,d] -> D:{dtype}[i,d]; E:{dtype}[i,k] F,G:{dtype}[i] H:{dtype}[i,k]\n"
        "L_i L_k L_d E_{i,k} += A_{i,d} B_{k,d}\n"
        "L_i L_k F_i max= 0.25*E_{i,k}\n"
        "L_i L_k G_i += exp(0.25*E_{i,k}-F_i)\n"
        "L_i L_k H_{i,k} = exp(0.25*E_{i,k}-F_i)/G_i\n"
        "L_i L_d L_k D_{i,d} += H_{i,k} C_{k,d}\n"
    )


@_pattern
def masked_average(m: int = 64, d: int = 16, dtype: str = "f32") -> str:
    """Values weighted by a softmax over what a row may see, normalised at the end."""
    return (
        f"i:{m} k:{m} d:{d}\n"
        f"A:{dtype}[i,k] B:{dtype}[k,d] -> C:{dtype}[i,d]; D:{dtype}[i,k] E,F:{dtype}[i] G:{dtype}[i,d]\n"
        "L_i L_k D_{i,k} = select(k<=i,A_{i,k},-inf)\n"
        "L_i L_k E_i max= D_{i,k}\n"
        "L_i L_k F_i += exp(D_{i,k}-E_i)\n"
        "L_i L_k L_d G_{i,d} += exp(D_{i,k}-E_i)*B_{k,d}\n"
        "L_i L_d C_{i,d} = G_{i,d}/F_i\n"
    )


@_pattern
def online_weights(m: int = 16, n: int = 64, d: int = 16, dtype: str = "f32") -> str:
    """Softmax weights from one pass over the scores, and the product with them."""
    return (
        f"i:{m} k:{n} d:{d}\nA:{dtype}[i,k] B:{dtype}[k,d] -> C:{dtype}[i,d]; D:{dtype}[i,k]\n"
        f"L_i [\n  E,F:{dtype}.l\n  E = -inf\n  F = 0\n"
        f"  L_k [\n    G:{dtype}.l\n    G = E\n    E = max(E,A_{{i,k}})\n"
        "    F = select(G==(-inf),0,F*exp(G-E))+exp(A_{i,k}-E)\n  ]\n"
        "  L_k D_{i,k} = exp(A_{i,k}-E)/F\n]\n"
        "L_i L_d L_k C_{i,d} += D_{i,k} B_{k,d}\n"
    )


@_pattern
def image_softmax(b: int = 4, h: int = 16, w: int = 16, dtype: str = "f32") -> str:
    """Softmax over rows and columns at once, at a temperature."""
    return (
        f"b:{b} x:{h} y:{w}\nA:{dtype}[b,x,y] -> C:{dtype}[b,x,y]; D,E:{dtype}[b]\n"
        "L_b L_x L_y D_b max= A_{b,x,y}\n"
        "L_b L_x L_y E_b += exp(2.0*(A_{b,x,y}-D_b))\n"
        "L_b L_x L_y C_{b,x,y} = exp(2.0*(A_{b,x,y}-D_b))/E_b\n"
    )


@_pattern
def column_log_softmax(m: int = 24, n: int = 16, dtype: str = "f32") -> str:
    """Logarithm of a softmax over columns."""
    return (
        f"j:{n} i:{m}\nA:{dtype}[i,j] -> C:{dtype}[i,j]; D,E:{dtype}[j]\n"
        "L_j L_i D_j max= A_{i,j}\n"
        "L_j L_i E_j += exp(A_{i,j}-D_j)\n"
        "L_j L_i C_{i,j} = A_{i,j}-D_j-log(E_j)\n"
    )


@_pattern
def log_sum_exp(m: int = 16, n: int = 64, dtype: str = "f32") -> str:
    """Logarithm of a sum of exponentials at a temperature, with a weight for each term."""
    return (
        f"i:{m} j:{n}\nA:{dtype}[i,j] B:{dtype}[j] -> C:{dtype}[i]; D,E:{dtype}[i]\n"
        "L_i L_j D_i max= A_{i,j}\n"
        "L_i L_j E_i += exp(0.5*(A_{i,j}-D_i))*(B_j*B_j+1)\n"
        "L_i C_i = 0.5*D_i+log(E_i)\n"
    )


@_pattern
def paired_convolutions(c: int = 4, o: int = 8, n: int = 32, dtype: str = "f32") -> str:
    """Two padded convolutions along a line with one kernel."""
    return (
        f"c:{c} o:{o} x:{n} y:{n + 2} k:3\n"
        f"A,B:{dtype}[c,x] | W:{dtype}[o,c,k] -> C,D:{dtype}[o,x]; E,F:{dtype}[c,y]\n"
        f"L_c L_y E_{{c,y}} = select(y>=1 and y<{n + 1},A_{{c,y-1}},0)\n"
        "L_o L_x L_c L_k C_{o,x} += E_{c,x+k} W_{o,c,k}\n"
        f"L_c L_y F_{{c,y}} = select(y>=1 and y<{n + 1},B_{{c,y-1}},0)\n"
        "L_o L_x L_c L_k D_{o,x} += F_{c,x+k} W_{o,c,k}\n"
    )


@_pattern
def paired_images(c: int = 2, o: int = 4, h: int = 16, w: int = 16, dtype: str = "f32") -> str:
    """Two padded convolutions of images with one kernel, every second row and column."""
    inside = f"p>=1 and p<{2 * h + 1} and q>=1 and q<{2 * w + 1}"
    return (
        f"c:{c} o:{o} x:{h} y:{w} p:{2 * h + 2} q:{2 * w + 2} r:3 s:3\n"
        f"A,B:{dtype}[c,{2 * h},{2 * w}] | W:{dtype}[o,c,r,s] -> C,D:{dtype}[o,x,y]; E,F:{dtype}[c,p,q]\n"
        f"L_c L_p L_q E_{{c,p,q}} = select({inside},A_{{c,p-1,q-1}},0)\n"
        "L_o L_x L_y L_c L_r L_s C_{o,x,y} += E_{c,2x+r,2y+s} W_{o,c,r,s}\n"
        f"L_c L_p L_q F_{{c,p,q}} = select({inside},B_{{c,p-1,q-1}},0)\n"
        "L_o L_x L_y L_c L_r L_s D_{o,x,y} += F_{c,2x+r,2y+s} W_{o,c,r,s}\n"
    )


@_pattern
def log_likelihoods(m: int = 16, n: int = 32, dtype: str = "f32") -> str:
    """Sums over rows of logarithms, and what they are logarithms of."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i] E,F:{dtype}[i,j]\n"
        "L_i L_j C_i += log(sigmoid(A_{i,j})*(abs(tanh(B_{i,j}))+1))\n"
        "L_i L_j D_i += log(sigmoid(A_{i,j})+1)-log(sigmoid(B_{i,j})+0.5)\n"
        "L_i L_j E_{i,j} = exp(tanh(A_{i,j}))/exp(abs(tanh(B_{i,j})))*sqrt(abs(A_{i,j})+1)*(abs(A_{i,j})+1)\n"
        "L_i L_j F_{i,j} = exp(-abs(A_{i,j})-abs(B_{i,j}))*pow(abs(B_{i,j})+1,-0.5)\n"
    )


@_pattern
def weighted_rows(m: int = 16, n: int = 32, dtype: str = "f32") -> str:
    """Softmax weights in sums of fractions, and multiples of sums in sums."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,F,G:{dtype}[i,j]; D,E,H:{dtype}[i]\n"
        "L_i L_j D_i max= A_{i,j}\n"
        "L_i L_j E_i += exp(A_{i,j}-D_i)\n"
        "L_i L_j H_i max= tanh(B_{i,j})\n"
        "L_i L_j C_{i,j} = exp(A_{i,j}-D_i)/E_i+B_{i,j}/E_i\n"
        "L_i L_j F_{i,j} = H_i*(A_{i,j}+B_{i,j})+0.5*B_{i,j}\n"
        "L_i L_j G_{i,j} = A_{i,j}*A_{i,j}+H_i*H_i+1\n"
    )


@_pattern
def two_maxima(m: int = 8, n: int = 8, t: int = 16, dtype: str = "f32") -> str:
    """Exponentials under a maximum of maxima."""
    return (
        f"i:{m} j:{n} k:{t}\nA,B:{dtype}[i,j,k] -> C,D:{dtype}[i,j,k] G:{dtype}[i]; E:{dtype}[i,j] F:{dtype}[i]\n"
        "L_i L_j L_k E_{i,j} max= A_{i,j,k}\n"
        "L_i L_j F_i max= E_{i,j}\n"
        "L_i L_j L_k C_{i,j,k} = exp(A_{i,j,k}-F_i)\n"
        "L_i L_j L_k D_{i,j,k} = exp(A_{i,j,k}-F_i)*B_{i,j,k}\n"
        "L_i L_j L_k G_i += exp(A_{i,j,k}-F_i)*B_{i,j,k}\n"
    )
