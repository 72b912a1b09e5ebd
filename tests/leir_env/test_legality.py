"""Verdicts on loops and orders: known answers, agreement of the two engines, and brute force."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envs.leir_env import dependence, legality, polyhedral
from envs.leir_env.affine import (
    Digit,
    affine,
    composed,
    digit,
    digital,
    evaluate,
    independent,
    interval,
    is_affine_condition,
    is_quasi_affine,
    strides,
    unique,
)
from envs.leir_env.dependence import (
    Meeting,
    Schedule,
    analysed,
    carried_order,
    carries_fast,
    common_loops,
    exists,
    references,
    turned_order,
    turns_fast,
)
from envs.leir_env.ir import (
    Access,
    Assign,
    Block,
    Call,
    Const,
    Expr,
    Index,
    Loop,
    Program,
)
from envs.leir_env.legality import (
    Order,
    carried,
    exchange,
    exchanged,
    order,
    parallel_refusal,
    read,
    starts,
    written,
)
from envs.leir_env.parser import parse
from envs.leir_env.tree import band, sites, walk
from tests.leir_env.nests import (
    FORMS,
    GUARDS,
    NAMES,
    POOL,
    SETTINGS,
    conflicts,
    execute,
    instances,
    programs,
    rearranged,
)

MATMUL = """\
i,j,k:512
A:f32[i,k] B:f32[k,j] -> C:f32[i,j]
L_i,j,k C[i,j] += A[i,k] B[k,j]
"""

TILED = """\
io:16 ii:32 jo:12 ji:64 k:1024
A:f32[512,1024] B:f32[1024,768] -> C:f32[512,768]
L_io,jo [
  D:f32.l[ii,ji]
  L_k,ii,ji D[ii,ji] += A[32io+ii,k] B[k,64jo+ji]
  L_ii,ji C[32io+ii,64jo+ji] = D[ii,ji]
]
"""

SHARED_TILE = """\
io:16 ii:32 jo:12 ji:64 k:1024
A:f32[512,1024] B:f32[1024,768] -> C:f32[512,768]; D:f32[ii,ji]
L_io,jo [
  L_ii,ji D[ii,ji] = 0.0
  L_k,ii,ji D[ii,ji] += A[32io+ii,k] B[k,64jo+ji]
  L_ii,ji C[32io+ii,64jo+ji] = D[ii,ji]
]
"""

SOFTMAX = """\
i:16 j:64
A:f32[i,j] -> C:f32[i,j]; D,E:f32[i]
L_i [
  L_j D[i] max= A[i,j]
  L_j E[i] += exp(A[i,j]-D[i])
  L_j C[i,j] = exp(A[i,j]-D[i])/E[i]
]
"""


def refusals(text: str) -> dict[str, str | None]:
    """The verdict on each loop, by index, in order (later loops over one index get a number)."""
    program = parse(text)
    found: dict[str, str | None] = {}
    for node in walk(program):
        if isinstance(node.statement, Loop):
            name = node.statement.index
            count = sum(1 for known in found if known.split(".")[0] == name)
            found[f"{name}.{count + 1}" if count else name] = parallel_refusal(program, node.path)
    return found


def test_matmul_is_parallel_over_rows_and_columns_only() -> None:
    found = refusals(MATMUL)
    assert found["i"] is None and found["j"] is None
    assert found["k"] == "k carries the reduction of C (C[i,j] += A[i,k] B[k,j])"


def test_matmul_with_the_reduction_outermost_is_exact() -> None:
    after = MATMUL.replace("L_i,j,k", "L_k,i,j")
    assert order(parse(MATMUL), parse(after)) is Order.EXACT


def test_two_reduction_loops_exchanged_reassociate_a_float_sum() -> None:
    before = "i,k,r:4\nA:f32[i,k,r] -> C:f32[i]\nL_i,k,r C[i] += A[i,k,r]\n"
    after = before.replace("L_i,k,r", "L_i,r,k")
    assert order(parse(before), parse(after)) is Order.REASSOCIATES


@pytest.mark.parametrize("change", [("+=", "max="), ("f32", "i32")])
def test_two_reduction_loops_exchanged_are_exact_for_maxima_and_integers(change: tuple[str, str]) -> None:
    before = "i,k,r:4\nA:f32[i,k,r] -> C:f32[i]\nL_i,k,r C[i] += A[i,k,r]\n".replace(*change)
    assert order(parse(before), parse(before.replace("L_i,k,r", "L_i,r,k"))) is Order.EXACT


def test_a_header_accumulator_forbids_parallel_tiles_and_a_private_one_allows_them() -> None:
    assert refusals(SHARED_TILE)["io"] is not None
    private = refusals(TILED)
    assert private["io"] is None and private["jo"] is None
    assert private["k"] == ("k carries the reduction of D (D[ii,ji] += A[32io+ii,k] B[k,64jo+ji])")
    assert [private[name] for name in ("ii", "ji", "ii.2", "ji.2")] == [None] * 4


def test_softmax_is_parallel_over_rows_and_its_reductions_are_not() -> None:
    found = refusals(SOFTMAX)
    assert found["i"] is None and found["j.3"] is None
    assert found["j"] == "j carries the reduction of D (D[i] max= A[i,j])"
    assert found["j.2"] == "j carries the reduction of E (E[i] += exp(A[i,j]-D[i]))"


def test_a_chain_of_elements_is_not_parallel() -> None:
    found = refusals("i:16\n-> A:f32[17]\nL_i A[i+1] = A[i]\n")
    assert found["i"] == (
        "i carries a dependence of A: A[i+1] = A[i] reads A that A[i+1] = A[i] wrote in an earlier iteration"
    )


def test_reading_ahead_is_an_anti_dependence() -> None:
    program = parse("i:16\n-> A:f32[17]\nL_i A[i] = A[i+1]\n")
    assert [found.kind for found in carried(program, (0,))] == ["anti"]


def test_a_guard_that_keeps_reads_and_writes_apart_makes_a_loop_parallel() -> None:
    text = "i:16\n-> A:f32[32]\nL_i A[i+8] = A[i] if i<8\n"
    assert refusals(text)["i"] is None
    assert refusals(text.replace("i<8", "i<9"))["i"] is not None


def test_a_select_constrains_only_the_arm_it_guards() -> None:
    text = "i:16\n-> A:f32[32]\nL_i A[i+8] = select(i<8,A[i],0.0)\n"
    assert refusals(text)["i"] is None
    assert refusals(text.replace("A[i],0.0", "0.0,A[i]"))["i"] is not None


def test_fused_subscripts_by_division_and_remainder_are_exact() -> None:
    text = "f:4096\nB:f32[64,64] -> A:f32[64,64]\nL_f A[f//64,f%64] = B[f//64,f%64]\n"
    assert refusals(text)["f"] is None
    assert refusals(text.replace("f%64]", "f%32]", 1))["f"] is not None


def test_an_indirect_subscript_is_taken_to_be_any_element() -> None:
    text = "i:16 j:4\nI:i32[i] B:f32[i] -> A:f32[i,j]\nL_i,j A[I[i],j] = B[i]\n"
    found = refusals(text)
    assert found["i"] is not None and found["j"] is None


ATTENTION = """\
h:2 i,j:8 d:4
Q,K,W:f32[h,i,d] -> O:f32[h,i,d]; S,R:f32[h,i,j] M,Z:f32[h,i]
L_h,i,j,d S[h,i,j] += Q[h,i,d] K[h,j,d]
L_h,i,j M[h,i] max= S[h,i,j]
L_h,i,j R[h,i,j] = exp(S[h,i,j]-M[h,i])
L_h,i,j Z[h,i] += R[h,i,j]
L_h,i,j R[h,i,j] = R[h,i,j]/Z[h,i]
L_h,i,d,j O[h,i,d] += R[h,i,j] W[h,j,d]
"""


def fused(program: Program, position: int, depth: int) -> Program:
    """Fuse a top-level nest with the next one over their outer `depth` loops."""

    def merge(one: Loop, two: Loop, level: int) -> Loop:
        if level == 1:
            body = one.block.body + two.block.body
        else:
            (first,), (second,) = one.block.body, two.block.body
            assert isinstance(first, Loop) and isinstance(second, Loop)
            body = (merge(first, second, level - 1),)
        return replace(one, block=Block(body, one.block.tensors + two.block.tensors))

    one, two = program.body[position], program.body[position + 1]
    assert isinstance(one, Loop) and isinstance(two, Loop)
    body = (*program.body[:position], merge(one, two, depth), *program.body[position + 2 :])
    return Program(replace(program.block, body=body))


@pytest.mark.parametrize(
    ("position", "depth", "legal"),
    [(0, 3, True), (1, 3, False), (1, 2, True), (4, 2, True), (4, 1, True), (3, 3, False), (3, 2, True)],
)
def test_stages_of_attention_fuse_where_a_row_is_complete(position: int, depth: int, legal: bool) -> None:
    before = parse(ATTENTION)
    verdict = order(before, fused(before, position, depth))
    assert verdict is Order.EXACT if legal else isinstance(verdict, str)


def test_all_loops_of_attention_but_its_reductions_are_parallel() -> None:
    program = parse(ATTENTION)
    loops = {name: node.path for name, node in sites(program).items() if isinstance(node.statement, Loop)}
    refused = {name for name, path in loops.items() if parallel_refusal(program, path)}
    assert refused == {"d", "j.2", "j.4", "j.6"} and len(loops) == 20


def test_loops_fuse_under_one_index_name() -> None:
    before = "i:8 j:8\nA:f32[8] -> C:f32[8]; D:f32[8]\nL_i D[i] = A[i]\nL_j C[j] = D[j]\n"
    after = parse("i:8\nA:f32[8] -> C:f32[8]; D:f32[8]\nL_i [\n  D[i] = A[i]\n  C[i] = D[i]\n]\n")
    renamed = before.replace(" j:8", "").replace("j", "i")
    assert order(parse(renamed), after) is Order.EXACT
    with pytest.raises(ValueError, match="no counterpart under the same loops"):
        order(parse(before), after)


def test_fusion_across_a_shifted_read_is_refused_with_the_two_equations() -> None:
    before = parse("i:8\nA:f32[8] -> C:f32[8]; D:f32[9]\nL_i D[i] = A[i]\nL_i C[i] = D[i+1]\n")
    after = parse("i:8\nA:f32[8] -> C:f32[8]; D:f32[9]\nL_i [\n  D[i] = A[i]\n  C[i] = D[i+1]\n]\n")
    assert order(before, after) == "C[i] = D[i+1] must come after D[i] = A[i]: flow dependence of D"


def test_fission_is_fusion_backwards() -> None:
    before = parse("i:8\nA:f32[8] -> C:f32[8]; D:f32[9]\nL_i [\n  D[i] = A[i]\n  C[i] = D[i]\n]\n")
    after = parse("i:8\nA:f32[8] -> C:f32[8]; D:f32[9]\nL_i D[i] = A[i]\nL_i C[i] = D[i]\n")
    assert order(before, after) is Order.EXACT
    assert order(after, before) is Order.EXACT


def test_an_independent_statement_may_move_past_another() -> None:
    before = parse("i:8\nA:f32[i] -> C,E:f32[i]; D:f32[i]\nL_i D[i] = A[i]\nL_i C[i] = D[i]\nL_i E[i] = A[i]\n")
    one, two, three = before.body
    assert order(before, Program(replace(before.block, body=(three, one, two)))) is Order.EXACT
    assert isinstance(order(before, Program(replace(before.block, body=(two, one, three)))), str)


def test_two_sums_into_one_tensor_may_change_places_by_reassociation() -> None:
    before = parse("i:8\nA,B:f32[i] -> C:f32[i]\nL_i C[i] += A[i]\nL_i C[i] += B[i]\n")
    after = Program(replace(before.block, body=before.body[::-1]))
    assert order(before, after) is Order.REASSOCIATES


def test_a_declaration_that_changes_its_block_is_refused() -> None:
    before = parse("i:8\nA:f32[i] -> C:f32[i]; D:f32\nL_i [\n  D = A[i]\n  C[i] = D\n]\n")
    after = parse("i:8\nA:f32[i] -> C:f32[i]\nL_i [\n  D:f32\n  D = A[i]\n  C[i] = D\n]\n")
    assert order(before, after) == "D is private to each (), and would be to each (i)"


def test_a_declaration_that_nothing_uses_may_move() -> None:
    before = parse("i,j:8\nA:f32[i] -> C:f32[i]\nL_j [\n  D:f32\n  L_i C[i] = A[i]\n]\n")
    after = parse("i,j:8\nA:f32[i] -> C:f32[i]\nL_i,j [\n  D:f32\n  C[i] = A[i]\n]\n")
    assert order(before, after) is Order.EXACT


def test_a_reduction_that_would_start_differently_is_refused() -> None:
    before = parse("-> C:f32[2]\nC[0] += 1.0\nC[1] *= 2.0\n")
    after = Program(replace(before.block, body=before.body[::-1]))
    assert order(before, after) == "C would start differently: its first assignment in its block would be another"


def test_summaries_name_what_a_statement_touches() -> None:
    program = parse(SOFTMAX)
    assert written(program.body[0]) == {"C", "D", "E"}
    assert read(program.body[0]) == {"A", "D", "E"}
    assert read(parse(MATMUL).body[0]) == {"A", "B"}
    assert starts(program) == {"D": Assign.MAX, "E": Assign.ADD}


def test_terms_are_unique_only_where_the_radix_suffices() -> None:
    assert unique((("io", 32), ("ii", 1)), {"io": 4, "ii": 32})
    assert not unique((("io", 32), ("ii", 1)), {"io": 4, "ii": 33})


def test_strides_are_those_of_a_row_major_tensor() -> None:
    subscripts = (Call("add", (Call("mul", (Const(32), Index("io"))), Index("ii"))), Index("k"))
    assert strides(Access("A", subscripts), (128, 8)) == {"io": 256, "ii": 8, "k": 1}


@SETTINGS
@given(programs())
def test_what_a_loop_carries_is_what_its_instances_show(program: Program) -> None:
    every = list(instances(program))
    assume(len(every) <= 80)
    for node in walk(program):
        if not isinstance(node.statement, Loop):
            continue
        depth, index = len(node.path), node.statement.index
        outer = {loop.index for loop in node.loops}
        shown: set[tuple[str, str]] = set()
        below = [instance for instance in every if instance.path[:depth] == node.path]
        for first, second in itertools.combinations(below, 2):
            x, y = dict(first.point), dict(second.point)
            if x[index] != y[index] and all(x[name] == y[name] for name in outer):
                shown |= conflicts(first, second)
        assert {(found.tensor, found.kind) for found in carried(program, node.path)} == shown


@SETTINGS
@given(programs(), st.randoms(use_true_random=False))
def test_a_parallel_loop_gives_the_same_values_in_any_order(program: Program, rng: random.Random) -> None:
    for node in walk(program):
        if isinstance(node.statement, Loop) and parallel_refusal(program, node.path) is None:
            assert execute(program) == execute(program, node.path, lambda values: values[::-1])
            shuffled = execute(program, node.path, lambda values: rng.sample(values, len(values)))
            assert execute(program) == shuffled


@SETTINGS
@given(st.data())
def test_the_verdict_on_an_order_is_what_its_instances_show(data: st.DataObject) -> None:
    before = data.draw(programs())
    after = data.draw(rearranged(before))
    old, new = list(instances(before)), list(instances(after))
    assume(len(old) <= 60)
    assert sorted((i.point, repr(i.equation)) for i in old) == sorted((i.point, repr(i.equation)) for i in new)
    places = {(instance.equation, instance.point): place for place, instance in enumerate(new)}
    turned: set[tuple[str, str]] = set()
    for first, second in itertools.combinations(old, 2):
        if places[first.equation, first.point] > places[second.equation, second.point]:
            turned |= {
                found
                for found in conflicts(first, second)
                if found[1] != "reduction" or Assign.ADD in (first.equation.assign, second.equation.assign)
            }
    verdict = order(before, after)
    if starts(before) != starts(after):
        assert isinstance(verdict, str) or (verdict is Order.EXACT and before == after)
    elif any(kind != "reduction" for _, kind in turned):
        assert isinstance(verdict, str), turned
    else:
        assert verdict is (Order.REASSOCIATES if turned else Order.EXACT)


@SETTINGS
@given(programs(), st.permutations(NAMES), st.booleans())
def test_the_fast_engine_never_contradicts_islpy(program: Program, names: list[str], textual: bool) -> None:
    body = analysed(program.body).statements
    for meeting in analysed(program.body).meetings:
        for m in meeting.directions:
            plain = replace(m, agree=m.equal)
            common = common_loops(m.s, m.t)
            for depth in range(m.private, len(common)):
                fast = carries_fast(m, depth)
                outer = frozenset(common[:depth])
                assert fast in (None, exists(m, outer, carried_order(common[depth])))
            was = Schedule(common, body.index(m.s) < body.index(m.t))
            now = Schedule(tuple(name for name in names if name in common), textual)
            assert turns_fast(m, was, now) in (None, exists(plain, m.equal, turned_order(plain, was, now)))


@SETTINGS
@given(programs())
def test_references_that_are_said_never_to_meet_have_no_common_element(program: Program) -> None:
    met = {(m.s, m.a, m.t, m.b) for m in analysed(program.body).meetings}
    body = analysed(program.body).statements
    for n, s in enumerate(body):
        for t in body[n:]:
            for a, b in itertools.product(references(s.equation), references(t.equation)):
                apart = (s, a, t, b) not in met and (t, b, s, a) not in met
                if apart and a.access.tensor == b.access.tensor and (a.writes or b.writes):
                    private = s.private.get(a.access.tensor, 0)
                    m = Meeting(s, a, t, b, private, frozenset(s.names[:private]))
                    assert not exists(m, m.equal, ())


@SETTINGS
@given(st.sampled_from(FORMS), st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), min_size=3))
def test_intervals_enclose_every_value_and_are_exact_for_affine_forms(text: str, extents: dict[str, int]) -> None:
    expr = POOL[text]
    points = itertools.product(*(range(extents[name]) for name in NAMES))
    values = [evaluate(expr, dict(zip(NAMES, point, strict=True))) for point in points]
    bounds = interval(expr, extents)
    assert bounds is not None and bounds[0] <= min(values) and max(values) <= bounds[1]
    if affine(expr) is not None:
        assert bounds == (min(values), max(values))


def _digit_value(number: Digit, value: int) -> int:
    quotient = value // number.divisor
    return quotient % number.modulus if number.modulus else quotient


@SETTINGS
@given(
    st.lists(st.builds(Digit, st.just("f"), st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=3),
    st.integers(1, 40),
)
def test_digits_compose_an_index_and_are_independent_only_if_enumeration_agrees(
    numbers: list[Digit], extent: int
) -> None:
    seen = [tuple(_digit_value(number, value) for number in numbers) for value in range(extent)]
    if composed(numbers, extent):
        assert len(set(seen)) == extent
    if independent(numbers, extent):
        assert len(set(seen)) == math.prod(number.extent({"f": extent}) for number in numbers)


@SETTINGS
@given(st.lists(st.tuples(st.sampled_from(["floordiv", "mod"]), st.sampled_from([1, 2, 3, 4, 6])), max_size=3))
def test_a_digital_form_has_the_value_of_its_expression(chain: list[tuple[str, int]]) -> None:
    expr: Expr = Index("f")
    for op, divisor in chain:
        expr = Call(op, (expr, Const(divisor)))
    form = digital(expr)
    for value in range(50) if form is not None else ():
        assert evaluate(expr, {"f": value}) == sum(
            factor * _digit_value(digit(name), value) for name, factor in form.terms
        )


def test_every_random_form_and_guard_is_within_the_solvers_reach() -> None:
    assert all(is_quasi_affine(POOL[text]) for text in FORMS)
    assert all(is_affine_condition(POOL[text]) for text in GUARDS)


def test_a_question_beyond_the_solvers_budget_is_answered_conservatively(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(polyhedral, "MAX_OPERATIONS", 1)
    program = parse("i:61\n-> A:f32[200]\nL_i A[2i+77] = A[3i%7] if i%5==3\n")
    assert parallel_refusal(program, (0,)) is not None
    dependence.carried.cache_clear()
    polyhedral.satisfiable.cache_clear()


@SETTINGS
@given(programs())
def test_an_exchange_is_judged_as_the_order_that_it_makes(program: Program) -> None:
    for node in walk(program):
        loop = node.statement
        if isinstance(loop, Loop) and len(band(loop)) > 1:
            nest = program.body[node.path[0]]
            assert isinstance(nest, Loop)
            for depth in range(1, len(band(loop))):
                verdict = order(program, exchanged(program, node.path, depth))
                found = exchange(nest, node.path[1:], depth)
                assert isinstance(found, str) == isinstance(verdict, str)
                assert isinstance(found, str) or bool(found) == (verdict is Order.REASSOCIATES)


def test_verdicts_survive_caches_that_forget_half() -> None:
    text = "i:6 j:5\nA:f32[i,j] -> C:f32[i]; D:f32[i]\n{}\n"
    one, other = "L_i,j D[i] += A[i,j]", "L_i C[i] = A[i,0]"
    before, after = parse(text.format(f"{one}\n{other}")), parse(text.format(f"{other}\n{one}"))
    verdict = order(before, after)
    for cached in (legality._compare, analysed):
        cached.cache_clear()
        assert order(before, after) is verdict
