"""Online reductions: a softmax, and what is summed with its weights, in one pass over the scores.

Every strategy here is made of the same steps (`running`): give a maximum an explicit running form, fuse a sum that
depends on it into its loop by rescaling, move a later stage into its rows. What has been summed so far is
`select(F==(-inf),0,E*exp(F-D))`: while the maximum `F` is still -inf nothing counts, since exp(-inf-(-inf)) is nan; a
row with nothing but -inf ends as it did before, as nan.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

from envs.leir_env.ir import Assign, Program, Role
from envs.leir_env.strategies.base import Exactness, Level, Outcome, Refusal, Strategy, register
from envs.leir_env.strategies.loops import Args, Site
from envs.leir_env.strategies.running import Running, explicit, running, writers
from envs.leir_env.strategies.softmax import (
    assigned,
    flash,
    maximum_of,
    normalisers,
    online,
    running_in,
    scored,
    summed,
    sums_of_exponentials,
    tidied,
    weighted,
)
from envs.leir_env.tree import accesses, declarations


class _Online(Strategy):
    """A strategy whose site is a tensor, and whose plan is the new program."""

    level = Level.MATH
    site_kinds = ("tensor",)

    @abstractmethod
    def _result(self, program: Program, name: str) -> Program | Refusal:
        """The program with the strategy applied to a tensor."""

    def _finish(self, program: Program, maximum: str) -> Program:
        """What is done to the result that can't fail."""
        return program

    def why_not(self, program: Program, site: Site, args: Args) -> Refusal | None:
        result = self._result(program, site[0])
        return result if isinstance(result, Refusal) else None

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        result = self._result(program, site[0])
        assert not isinstance(result, Refusal)
        return Outcome(self._finish(result, maximum_of(program, site[0])), Exactness.REASSOCIATES)


@register
class NormalLoopMaxToPrefixMax(_Online):
    """Turn a maximum that a loop accumulates into a running maximum with an explicit start and update.

    Each step then holds the maximum of all terms so far (the prefix maximum) in the one element there always was, ready
    for sums that are fused into the loop and need it. After Step-TP (arXiv 2605.25954), without its array of prefixes.

    Requires:
        1. One equation takes the maximum, from -inf on, and no other assigns the tensor.
        2. Its serial reduction loops stand inside all its others, and nothing reads an element before it is complete.

    Rewrite:
        L_i,j D[i] max= A[i,j]        L_i [
                                 ->     D[i] = -inf
                                        L_j D[i] = max(D[i],A[i,j])
                                      ]
    """

    name = "normal_loop_max_to_prefix_max"

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name in assigned(program, Assign.MAX, False):
            yield (name,), ()

    def _result(self, program: Program, name: str) -> Program | Refusal:
        return explicit(program, name)

    def rewrite(self, program: Program, site: Site, args: Args) -> Outcome:
        return Outcome(super().rewrite(program, site, args).program, Exactness.EXACT)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        base = running(self.rewrite(program, site, args).program, site[0])
        assert base is not None
        return (
            f"Start {site[0]} at -inf and update it in each of {_steps(base)}: it holds the maximum so far, by which "
            f"sums that need the final one can be rescaled and taken in the same loop."
        )


@register
class NormalLoopSummationOnExpToPrefixSummationOnExp(_Online):
    """Sum exponentials in the loop that takes their maximum, rescaling the sum when the maximum grows.

    With `F` the maximum before a step and `D` after it, `exp(x-F)*exp(F-D) = exp(x-D)`.

    Requires:
        1. One equation sums exp(c*(x-D)), with a constant c > 0, perhaps times factors that do not depend on D.
        2. D is the maximum of the same x over the same loops, in its plain or its running form.
        3. Both stand in one block, and every other dependence of the sum still points forward.

    Rewrite:
        L_i,j D[i] max= A[i,j]                L_i [
        L_i,j E[i] += exp(A[i,j]-D[i])          D[i] = -inf
                                                E[i] = 0
                                         ->     L_j [
                                                  F:f32.l
                                                  F = D[i]
                                                  D[i] = max(D[i],A[i,j])
                                                  E[i] = select(F==(-inf),0,E[i]*exp(F-D[i]))+exp(A[i,j]-D[i])
                                                ]
                                              ]
    """

    name = "normal_loop_summation_on_exp_to_prefix_summation_on_exp"

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name in sums_of_exponentials(program):
            yield (name,), ()

    def _result(self, program: Program, name: str) -> Program | Refusal:
        return summed(program, name)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        base = running_in(self.rewrite(program, site, args).program, maximum_of(program, site[0]))
        return (
            f"Sum {site[0]} in the loop that takes the maximum {base.maximum.tensor}: {_read(program, base)} once "
            f"instead of twice, for one more exponential in each of {_steps(base)}."
        )


@register
class OnlineSoftmax(_Online):
    """Take the maximum and the sum of a softmax in one pass, and compute the result from them row by row.

    Three passes over the scores become two, the second one over a row that was just read. After Milakov and
    Gimelshein (arXiv 1805.02867).

    Requires:
        1. The tensor is computed from a maximum and a sum of exponentials, which are fused as by
           `normal_loop_summation_on_exp_to_prefix_summation_on_exp` or are so already.
        2. Its nest stands in their rows or follows them directly, under the same loops over rows.
        3. Every dependence still points forward.

    Rewrite:
        L_i,j D[i] max= A[i,j]                      L_i [
        L_i,j E[i] += exp(A[i,j]-D[i])                D,E:f32.l
        L_i,j C[i,j] = exp(A[i,j]-D[i])/E[i]          D = -inf
                                                      E = 0
                                               ->     L_j [
                                                        F:f32.l
                                                        F = D
                                                        D = max(D,A[i,j])
                                                        E = select(F==(-inf),0,E*exp(F-D))+exp(A[i,j]-D)
                                                      ]
                                                      L_j C[i,j] = exp(A[i,j]-D)/E
                                                    ]
    """

    name = "online_softmax"

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        if assigned(program, Assign.MAX, False) or assigned(program, Assign.SET, True):
            for name in assigned(program, Assign.SET, False):
                if len(writers(program, name)) == 1 and normalisers(program, name) is not None:
                    yield (name,), ()

    def _result(self, program: Program, name: str) -> Program | Refusal:
        return online(program, name)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        found = normalisers(program, site[0])
        assert found is not None
        base = running_in(self.rewrite(program, site, args).program, found[0])
        return (
            f"Take the maximum {found[0]} and the sum {found[1]} in one pass of {_steps(base)} and compute {site[0]} "
            f"in the same row: {_read(program, base)} twice instead of three times, the second time from cache."
        )


@register
class NormalMatmulToPrefixMatmulBasedOnOnlineSoftmax(_Online):
    """Sum a product with softmax weights in the loop of the online softmax, rescaling what is summed so far.

    The weights need neither the final maximum nor the final sum any more: the division comes after the loop, and a
    tensor of weights that nothing else reads is dropped. One running value for each element of the product, which until
    the division may be larger than the result by as much as the sum is: in f16, that leaves less range.

    Requires:
        1. The program has an online softmax: a running maximum D with its sum E.
        2. One equation sums exp(c*(x-D))*v, perhaps divided by E, or weights defined so times v, over the same loops.
        3. Both stand in one block, and every other dependence of the product still points forward.

    Rewrite:
        L_i [                                   L_i [
          ...                                     ...
          L_k [                                   L_m O[i,m] = 0
            ...                                   L_k [
            D = max(D,S[i,k])                       ...
            E = ...                                 D = max(D,S[i,k])
          ]                                ->       G = exp(F-D)
          L_k P[i,k] = exp(S[i,k]-D)/E              H = exp(S[i,k]-D)
        ]                                           E = ...
        L_i,m,k O[i,m] += P[i,k] V[k,m]             L_m O[i,m] = select(F==(-inf),0,O[i,m] G)+H V[k,m]
                                                  ]
                                                  L_m O[i,m] = O[i,m]/E
                                                ]
    """

    name = "normal_matmul_to_prefix_matmul_based_on_online_softmax"

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name in sums_of_exponentials(program):
            yield (name,), ()

    def _result(self, program: Program, name: str) -> Program | Refusal:
        return weighted(program, name)

    def _finish(self, program: Program, maximum: str) -> Program:
        return tidied(program, maximum)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        after = self.rewrite(program, site, args).program
        base = running_in(after, maximum_of(program, site[0]))
        return (
            f"Sum {site[0]} in {_steps(base)} of the online softmax: its weights are used where they are computed, and "
            f"temporaries take {_temporary(after)} bytes instead of {_temporary(program)}."
        )


@register
class FlashattentionWoTiling(_Online):
    """Fuse scores, softmax and the product with the values into one pass over the keys (FlashAttention, not tiled).

    The loop over the keys carries the maximum, the sum and one running value for each element of the output; scores
    and weights are scalars. After Dao et al. (arXiv 2205.14135).

    Requires:
        1. One equation sums softmax weights times values; maximum, sum and product are over the same loops.
        2. They fuse as by `normal_loop_summation_on_exp_to_prefix_summation_on_exp` and
           `normal_matmul_to_prefix_matmul_based_on_online_softmax`, and are not online already.
        3. Scores that are temporaries, each used by one key of one row alone, move into the loop; others are read.

    Rewrite:
        L_i,k,m S[i,k] += Q[i,m] K[k,m]              L_i [
        L_i,k D[i] max= S[i,k]                         D,E:f32.l
        L_i,k E[i] += exp(S[i,k]-D[i])                 D = -inf
        L_i,k P[i,k] = exp(S[i,k]-D[i])/E[i]           E = 0
        L_i,m,k O[i,m] += P[i,k] V[k,m]                L_m O[i,m] = 0
                                                       L_k [
                                                         F,G,H,S:f32.l
                                                         L_m S += Q[i,m] K[k,m]
                                                         F = D
                                                ->       D = max(D,S)
                                                         G = exp(F-D)
                                                         H = exp(S-D)
                                                         E = select(F==(-inf),0,E*G)+H
                                                         L_m O[i,m] = select(F==(-inf),0,O[i,m] G)+H V[k,m]
                                                       ]
                                                       L_m O[i,m] = O[i,m]/E
                                                     ]
    """

    name = "flashattention_wo_tiling"

    def candidates(self, program: Program) -> Iterator[tuple[Site, Args]]:
        for name in sums_of_exponentials(program):
            yield (name,), ()

    def _result(self, program: Program, name: str) -> Program | Refusal:
        return flash(program, name)

    def _finish(self, program: Program, maximum: str) -> Program:
        return tidied(scored(program, maximum), maximum)

    def rationale(self, program: Program, site: Site, args: Args) -> str:
        after = self.rewrite(program, site, args).program
        base = running_in(after, maximum_of(program, site[0]))
        return (
            f"Sum {site[0]} in the loop that takes the maximum {base.maximum.tensor}, one pass of {_steps(base)}, "
            f"rescaling it as the maximum grows: temporaries take {_temporary(after)} bytes instead of "
            f"{_temporary(program)}."
        )


def _steps(base: Running) -> str:
    """`1024 steps of j`."""
    count = math.prod(loop.extent for loop in base.steps)
    return f"{count} {'step' if count == 1 else 'steps'} of {', '.join(loop.index for loop in base.steps)}"


def _read(program: Program, base: Running) -> str:
    """`A (2048 bytes) is read`, for what the maximum is taken of."""
    names = list(dict.fromkeys(access.tensor for access in accesses(base.term)))
    if not names:
        return "nothing is read"
    size = sum(declarations(program)[name][0].nbytes for name in names)
    return f"{', '.join(names)} ({size} bytes) {'is' if len(names) == 1 else 'are'} read"


def _temporary(program: Program) -> int:
    """Bytes of the temporaries of the header."""
    return sum(tensor.nbytes for tensor in program.with_role(Role.TEMPORARY))
