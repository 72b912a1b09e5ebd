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
        "L_i,j D[i] max= A[i,j]\n"
        "L_i,j E[i] += exp(A[i,j]-D[i])\n"
        "L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]\n"
    )


@_pattern
def twin_maps(m: int = 12, n: int = 20, dtype: str = "f32") -> str:
    """The same function of two inputs."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i,j]\nL_i,j C[i,j] = tanh(A[i,j])\nL_i,j D[i,j] = tanh(B[i,j])\n"
    )


@_pattern
def transposed_batches(b: int = 4, m: int = 24, n: int = 20, k: int = 28, dtype: str = "f32") -> str:
    """A product of batches of matrices, the first of them stored transposed."""
    return (
        f"h:{b} i:{m} j:{n} k:{k}\nA:{dtype}[h,k,i] B:{dtype}[h,k,j] -> C:{dtype}[h,i,j]\n"
        "L_h,i,j,k C[h,i,j] += A[h,k,i] B[h,k,j]\n"
    )


@_pattern
def strided_windows(m: int = 24, n: int = 16, p: int = 3, dtype: str = "f32") -> str:
    """Sums over windows that overlap."""
    return f"i:{m} j:{n} k:{p}\nA:{dtype}[{2 * m + p - 2},j] -> C:{dtype}[i,j]\nL_i,j,k C[i,j] += A[2i+k,j]\n"


@_pattern
def polynomials(n: int = 256, dtype: str = "f32") -> str:
    """Sums of products with common factors, and products of sums."""
    return (
        f"i:{n}\nA,B,C:{dtype}[i] -> D,E,F:{dtype}[i]\n"
        "L_i D[i] = A[i] B[i]+A[i] C[i]\n"
        "L_i E[i] = A[i] B[i]+A[i] C[i]+B[i]\n"
        "L_i F[i] = (A[i]+B[i])*(B[i]+C[i])*0.25+A[i]*(C[i]+0.5)\n"
    )


@_pattern
def fractions(n: int = 256, dtype: str = "f32") -> str:
    """Quotients by what is never zero."""
    return (
        f"i:{n}\nA,B:{dtype}[i] -> C,D,E:{dtype}[i]; F:{dtype}[i]\n"
        "L_i F[i] = sigmoid(A[i])+0.5\n"
        "L_i C[i] = A[i]/F[i]+B[i]/F[i]\n"
        "L_i D[i] = (A[i]+B[i])/(abs(tanh(B[i]))+1)\n"
        "L_i E[i] = A[i] F[i]/((B[i] B[i]+1)*F[i])\n"
    )


@_pattern
def powers_and_logs(n: int = 256, dtype: str = "f32") -> str:
    """Products of exponentials and powers, logarithms of products and sums of logarithms."""
    return (
        f"i:{n}\nA,B:{dtype}[i] -> C,D,E,F:{dtype}[i]\n"
        "L_i C[i] = exp(-abs(A[i]))*exp(-abs(B[i]))\n"
        "L_i D[i] = pow(abs(A[i])+1,1.5)*exp(-abs(A[i])-abs(B[i]))\n"
        "L_i E[i] = log(sigmoid(A[i])*(abs(B[i])+1))\n"
        "L_i F[i] = log(sigmoid(A[i])+1)+log(sigmoid(B[i])+1)\n"
    )


@_pattern
def cell_gates(m: int = 16, n: int = 24, k: int = 32, dtype: str = "f32") -> str:
    """Four linear layers of one input, as in a recurrent cell."""
    return (
        f"i:{m} j:{n} k:{k}\nA:{dtype}[i,k] | B,C,D,E:{dtype}[j,k] -> F,G,H,J:{dtype}[i,j]\n"
        "L_i,j,k F[i,j] += A[i,k] B[j,k]\n"
        "L_i,j,k G[i,j] += A[i,k] C[j,k]\n"
        "L_i,j,k H[i,j] += A[i,k] D[j,k]\n"
        "L_i,j,k J[i,j] += A[i,k] E[j,k]\n"
    )


@_pattern
def twin_sums(m: int = 16, n: int = 64, dtype: str = "f32") -> str:
    """The same sum over the rows of two inputs, and a common factor of both."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D,E:{dtype}[i]\n"
        "L_i,j C[i] += sigmoid(A[i,j])\n"
        "L_i,j D[i] += sigmoid(B[i,j])\n"
        "L_i E[i] = C[i]*tanh(D[i])+D[i]*tanh(D[i])\n"
    )


@_pattern
def leftovers(m: int = 8, n: int = 64, dtype: str = "f32") -> str:
    """Results that nothing reads, the last of a chain and by themselves."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C:{dtype}[i,j]; D:{dtype}[i] E,F,G:{dtype}[i,j]\n"
        "L_i,j D[i] max= A[i,j]\n"
        "L_i,j E[i,j] = A[i,j]-D[i]\n"
        "L_i,j F[i,j] = sigmoid(E[i,j])\n"
        "L_i,j [\n  G[i,j] = A[i,j]*B[i,j]\n  C[i,j] = A[i,j]+B[i,j]\n]\n"
    )


@_pattern
def overwritten(m: int = 8, n: int = 64, dtype: str = "f32") -> str:
    """Results that others take the place of before anything reads them."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i,j]; E:{dtype}[i,j]\n"
        "L_i,j C[i,j] = 0\n"
        "L_i,j E[i,j] = tanh(A[i,j])\n"
        "L_i [\n  L_j D[i,j] = A[i,j]\n  L_j D[i,j] = E[i,j]*B[i,j]\n]\n"
        "L_i,j E[i,j] = A[i,j]-B[i,j]\n"
        "L_i,j C[i,j] = E[i,j]*D[i,j]\n"
    )


@_pattern
def tile_maxima(m: int = 16, n: int = 8, t: int = 16, dtype: str = "f32") -> str:
    """Softmax whose maximum is taken tile by tile."""
    place = f"i,{t}j+k" if t > 1 else "i,j+k"
    return (
        f"i:{m} j:{n} k:{t}\nA:{dtype}[i,{n * t}] -> C:{dtype}[i,{n * t}]; D:{dtype}[i,j] E,F:{dtype}[i]\n"
        f"L_i,j,k D[i,j] max= A[{place}]\n"
        "L_i,j E[i] max= D[i,j]\n"
        f"L_i,j,k F[i] += exp(A[{place}]-E[i])\n"
        f"L_i,j,k C[{place}] = exp(A[{place}]-E[i])/F[i]\n"
    )


@_pattern
def gates(n: int = 256, dtype: str = "f32") -> str:
    """Bounded gates next to values that don't use them."""
    return (
        f"i:{n}\nA,B:{dtype}[i] -> C,D,E,F:{dtype}[i]\n"
        "L_i E[i] = sigmoid(A[i])+0.5\n"
        "L_i F[i] = tanh(B[i])\n"
        "L_i C[i] = A[i]*B[i]\n"
        "L_i D[i] = B[i]*B[i]+1\n"
    )


@_pattern
def staged_tiles(m: int = 8, n: int = 16, t: int = 16, dtype: str = "f32") -> str:
    """Rows worked on tile by tile, each tile copied to a buffer first."""
    place = f"i,{t}j+k" if t > 1 else "i,j+k"
    return (
        f"i:{m} j:{n} k:{t}\nA:{dtype}[i,{n * t}] B:{dtype}[k] -> C,D:{dtype}[i,j]\n"
        "L_i,j [\n"
        f"  E:{dtype}.l[k]\n"
        f"  L_k E[k] = A[{place}]\n"
        "  L_k C[i,j] += E[k] B[k]\n"
        "  L_k D[i,j] max= E[k]\n"
        "]\n"
    )


@_pattern
def attention_rows(m: int = 16, n: int = 64, d: int = 16, dtype: str = "f32") -> str:
    """Scores, softmax and the product with the values."""
    return (
        f"i:{m} k:{n} d:{d}\n"
        f"A:{dtype}[i,d] B,C:{dtype}[k,d] -> D:{dtype}[i,d]; E:{dtype}[i,k] F,G:{dtype}[i] H:{dtype}[i,k]\n"
        "L_i,k,d E[i,k] += A[i,d] B[k,d]\n"
        "L_i,k F[i] max= 0.25*E[i,k]\n"
        "L_i,k G[i] += exp(0.25*E[i,k]-F[i])\n"
        "L_i,k H[i,k] = exp(0.25*E[i,k]-F[i])/G[i]\n"
        "L_i,d,k D[i,d] += H[i,k] C[k,d]\n"
    )


@_pattern
def masked_average(m: int = 64, d: int = 16, dtype: str = "f32") -> str:
    """Values weighted by a softmax over what a row may see, normalised at the end."""
    return (
        f"i:{m} k:{m} d:{d}\n"
        f"A:{dtype}[i,k] B:{dtype}[k,d] -> C:{dtype}[i,d]; D:{dtype}[i,k] E,F:{dtype}[i] G:{dtype}[i,d]\n"
        "L_i,k D[i,k] = select(k<=i,A[i,k],-inf)\n"
        "L_i,k E[i] max= D[i,k]\n"
        "L_i,k F[i] += exp(D[i,k]-E[i])\n"
        "L_i,k,d G[i,d] += exp(D[i,k]-E[i])*B[k,d]\n"
        "L_i,d C[i,d] = G[i,d]/F[i]\n"
    )


@_pattern
def online_weights(m: int = 16, n: int = 64, d: int = 16, dtype: str = "f32") -> str:
    """Softmax weights from one pass over the scores, and the product with them."""
    return (
        f"i:{m} k:{n} d:{d}\nA:{dtype}[i,k] B:{dtype}[k,d] -> C:{dtype}[i,d]; D:{dtype}[i,k]\n"
        f"L_i [\n  E,F:{dtype}.l\n  E = -inf\n  F = 0\n"
        f"  L_k [\n    G:{dtype}.l\n    G = E\n    E = max(E,A[i,k])\n"
        "    F = select(G==(-inf),0,F*exp(G-E))+exp(A[i,k]-E)\n  ]\n"
        "  L_k D[i,k] = exp(A[i,k]-E)/F\n]\n"
        "L_i,d,k C[i,d] += D[i,k] B[k,d]\n"
    )


@_pattern
def image_softmax(b: int = 4, h: int = 16, w: int = 16, dtype: str = "f32") -> str:
    """Softmax over rows and columns at once, at a temperature."""
    return (
        f"b:{b} x:{h} y:{w}\nA:{dtype}[b,x,y] -> C:{dtype}[b,x,y]; D,E:{dtype}[b]\n"
        "L_b,x,y D[b] max= A[b,x,y]\n"
        "L_b,x,y E[b] += exp(2.0*(A[b,x,y]-D[b]))\n"
        "L_b,x,y C[b,x,y] = exp(2.0*(A[b,x,y]-D[b]))/E[b]\n"
    )


@_pattern
def column_log_softmax(m: int = 24, n: int = 16, dtype: str = "f32") -> str:
    """Logarithm of a softmax over columns."""
    return (
        f"j:{n} i:{m}\nA:{dtype}[i,j] -> C:{dtype}[i,j]; D,E:{dtype}[j]\n"
        "L_j,i D[j] max= A[i,j]\n"
        "L_j,i E[j] += exp(A[i,j]-D[j])\n"
        "L_j,i C[i,j] = A[i,j]-D[j]-log(E[j])\n"
    )


@_pattern
def log_sum_exp(m: int = 16, n: int = 64, dtype: str = "f32") -> str:
    """Logarithm of a sum of exponentials at a temperature, with a weight for each term."""
    return (
        f"i:{m} j:{n}\nA:{dtype}[i,j] B:{dtype}[j] -> C:{dtype}[i]; D,E:{dtype}[i]\n"
        "L_i,j D[i] max= A[i,j]\n"
        "L_i,j E[i] += exp(0.5*(A[i,j]-D[i]))*(B[j]*B[j]+1)\n"
        "L_i C[i] = 0.5*D[i]+log(E[i])\n"
    )


@_pattern
def paired_convolutions(c: int = 4, o: int = 8, n: int = 32, dtype: str = "f32") -> str:
    """Two padded convolutions along a line with one kernel."""
    return (
        f"c:{c} o:{o} x:{n} y:{n + 2} k:3\n"
        f"A,B:{dtype}[c,x] | W:{dtype}[o,c,k] -> C,D:{dtype}[o,x]; E,F:{dtype}[c,y]\n"
        f"L_c,y E[c,y] = select(y>=1 and y<{n + 1},A[c,y-1],0)\n"
        "L_o,x,c,k C[o,x] += E[c,x+k] W[o,c,k]\n"
        f"L_c,y F[c,y] = select(y>=1 and y<{n + 1},B[c,y-1],0)\n"
        "L_o,x,c,k D[o,x] += F[c,x+k] W[o,c,k]\n"
    )


@_pattern
def paired_images(c: int = 2, o: int = 4, h: int = 16, w: int = 16, dtype: str = "f32") -> str:
    """Two padded convolutions of images with one kernel, every second row and column."""
    inside = f"p>=1 and p<{2 * h + 1} and q>=1 and q<{2 * w + 1}"
    return (
        f"c:{c} o:{o} x:{h} y:{w} p:{2 * h + 2} q:{2 * w + 2} r,s:3\n"
        f"A,B:{dtype}[c,{2 * h},{2 * w}] | W:{dtype}[o,c,r,s] -> C,D:{dtype}[o,x,y]; E,F:{dtype}[c,p,q]\n"
        f"L_c,p,q E[c,p,q] = select({inside},A[c,p-1,q-1],0)\n"
        "L_o,x,y,c,r,s C[o,x,y] += E[c,2x+r,2y+s] W[o,c,r,s]\n"
        f"L_c,p,q F[c,p,q] = select({inside},B[c,p-1,q-1],0)\n"
        "L_o,x,y,c,r,s D[o,x,y] += F[c,2x+r,2y+s] W[o,c,r,s]\n"
    )


@_pattern
def log_likelihoods(m: int = 16, n: int = 32, dtype: str = "f32") -> str:
    """Sums over rows of logarithms, and what they are logarithms of."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,D:{dtype}[i] E,F:{dtype}[i,j]\n"
        "L_i,j C[i] += log(sigmoid(A[i,j])*(abs(tanh(B[i,j]))+1))\n"
        "L_i,j D[i] += log(sigmoid(A[i,j])+1)-log(sigmoid(B[i,j])+0.5)\n"
        "L_i,j E[i,j] = exp(tanh(A[i,j]))/exp(abs(tanh(B[i,j])))*sqrt(abs(A[i,j])+1)*(abs(A[i,j])+1)\n"
        "L_i,j F[i,j] = exp(-abs(A[i,j])-abs(B[i,j]))*pow(abs(B[i,j])+1,-0.5)\n"
    )


@_pattern
def weighted_rows(m: int = 16, n: int = 32, dtype: str = "f32") -> str:
    """Softmax weights in sums of fractions, and multiples of sums in sums."""
    return (
        f"i:{m} j:{n}\nA,B:{dtype}[i,j] -> C,F,G:{dtype}[i,j]; D,E,H:{dtype}[i]\n"
        "L_i,j D[i] max= A[i,j]\n"
        "L_i,j E[i] += exp(A[i,j]-D[i])\n"
        "L_i,j H[i] max= tanh(B[i,j])\n"
        "L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]+B[i,j]/E[i]\n"
        "L_i,j F[i,j] = H[i]*(A[i,j]+B[i,j])+0.5*B[i,j]\n"
        "L_i,j G[i,j] = A[i,j]*A[i,j]+H[i]*H[i]+1\n"
    )


@_pattern
def two_maxima(m: int = 8, n: int = 8, t: int = 16, dtype: str = "f32") -> str:
    """Exponentials under a maximum of maxima."""
    return (
        f"i:{m} j:{n} k:{t}\nA,B:{dtype}[i,j,k] -> C,D:{dtype}[i,j,k] G:{dtype}[i]; E:{dtype}[i,j] F:{dtype}[i]\n"
        "L_i,j,k E[i,j] max= A[i,j,k]\n"
        "L_i,j F[i] max= E[i,j]\n"
        "L_i,j,k C[i,j,k] = exp(A[i,j,k]-F[i])\n"
        "L_i,j,k D[i,j,k] = exp(A[i,j,k]-F[i])*B[i,j,k]\n"
        "L_i,j,k G[i] += exp(A[i,j,k]-F[i])*B[i,j,k]\n"
    )
