"""Restrictions, and the configurations that they leave."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.autotune_env.domain import NOWHERE, Domain, Parameter, SpaceError, finder, moves
from envs.autotune_env.restrictions import RestrictionError, enumerate_configurations, parse
from envs.autotune_env.synthetic import CONSTANTS, RESTRICTIONS, VALUES, synthetic

VALUES_OF = {"x": (1, 2, 4), "y": (0, 1), "z": (3, 5, 7)}

EXPRESSIONS = [
    "x * y <= 2",
    "x + z > 5 and y == 1",
    "y == 0 or x % 2 == 0",
    "not (x == 4 and z == 7)",
    "1 <= x < z",
    "z in (3, 7)",
    "z not in [x, 5]",
    "min(x, z) + max(y, 1) != 3",
    "abs(x - z) > 1",
    "x // 2 - -y >= 1",
    "z / 2 > x",
    "x ** 2 < k",
    "(x == 1) != (y == 1)",
]


def domain_of(values, constants=None, restrictions=()):
    configurations = enumerate_configurations(values, constants or {}, [parse(text) for text in restrictions])
    parameters = tuple(Parameter(name, choices) for name, choices in values.items())
    return Domain(parameters, configurations, constants or {}, restrictions=tuple(restrictions))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_a_restriction_means_what_python_says(text):
    found = enumerate_configurations(VALUES_OF, {"k": 5}, [parse(text)])
    product = itertools.product(*(range(len(choices)) for choices in VALUES_OF.values()))
    expected = []
    for indices in product:
        names = {name: choices[i] for (name, choices), i in zip(VALUES_OF.items(), indices, strict=True)}
        if eval(text, {}, names | {"k": 5}):
            expected.append(list(indices))
    assert 0 < len(expected) < 18
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x <=", "is not an expression"),
        ("__import__('os').system('true')", "has no meaning in a restriction"),
        ("[x for x in y]", "has no meaning in a restriction"),
        ("x.bit_length() > 1", "has no meaning in a restriction"),
        ("lambda: x", "has no meaning in a restriction"),
        ("(x, y) == 3", "has no meaning in a restriction"),
        ("abs(x, y) > 1", "has no meaning in a restriction"),
        ("x" * 3000, "at most 2,000 characters, got 3,000"),
    ],
)
def test_what_is_no_restriction_is_refused_and_never_run(text, message):
    with pytest.raises(RestrictionError, match=message):
        parse(text)


def test_a_restriction_of_an_unknown_name_is_refused():
    with pytest.raises(RestrictionError, match="'q > 1' names q, which is no parameter"):
        enumerate_configurations(VALUES_OF, {}, [parse("q > 1")])


def test_a_restriction_that_the_values_do_not_allow_says_so():
    with pytest.raises(RestrictionError, match="can't be evaluated"):
        enumerate_configurations({"mode": ("fast", "slow"), "x": (1, 2)}, {}, [parse("mode < x")])


def test_texts_are_compared_as_texts():
    found = enumerate_configurations({"mode": ("fast", "slow"), "x": (1, 2)}, {}, [parse("mode == 'fast' or x == 1")])
    assert found.tolist() == [[0, 0], [0, 1], [1, 0]]


SIZES = st.lists(st.integers(2, 4), min_size=1, max_size=4)


@st.composite
def domains(draw):
    sizes = draw(SIZES)
    product = list(itertools.product(*(range(size) for size in sizes)))
    kept = draw(st.lists(st.sampled_from(product), min_size=1, unique=True).map(sorted))
    parameters = tuple(Parameter(f"p{n}", tuple(range(10, 10 + size))) for n, size in enumerate(sizes))
    return Domain(parameters, np.array(kept, np.uint16)), product


@settings(max_examples=60, deadline=None)
@given(domains())
def test_every_look_up_agrees_with_a_search_through_all_rows(made):
    domain, product = made
    rows = {tuple(indices): row for row, indices in enumerate(domain.configurations.tolist())}
    expected = [rows.get(indices, NOWHERE) for indices in product]
    assert domain.rows(np.array(product)).tolist() == expected
    assert [domain.row(indices) for indices in product] == expected
    codes = np.array([sum(i * s for i, s in zip(indices, domain.strides, strict=True)) for indices in product])
    assert finder(domain.codes, domain.cartesian)(codes).tolist() == expected


def test_a_large_product_is_searched_and_not_tabulated(monkeypatch):
    domain = synthetic().domain
    codes = np.arange(domain.cartesian)
    dense = finder(domain.codes, domain.cartesian)(codes)
    monkeypatch.setattr("envs.autotune_env.domain.DENSE", 0)
    assert np.array_equal(finder(domain.codes, domain.cartesian)(codes), dense)


@settings(max_examples=60, deadline=None)
@given(domains(), st.data())
def test_a_conditional_mask_allows_what_some_configuration_continues_with(made, data):
    domain, product = made
    length = data.draw(st.integers(0, len(domain.sizes) - 1))
    prefix = data.draw(st.sampled_from(product))[:length]
    possible = {row[length] for row in map(tuple, domain.configurations.tolist()) if row[:length] == prefix}
    assert np.flatnonzero(domain.allowed(prefix)).tolist() == sorted(possible)
    many = np.array(product)[:, :length]
    assert domain.allowed(many).tolist() == [domain.allowed(one).tolist() for one in many]


@settings(max_examples=40, deadline=None)
@given(domains())
def test_a_move_changes_one_value_and_leads_to_a_configuration(made):
    domain, _ = made
    rows = {tuple(indices): row for row, indices in enumerate(domain.configurations.tolist())}
    table = moves(domain)
    for row, indices in enumerate(domain.configurations.tolist()):
        expected = []
        for position, size in enumerate(domain.sizes):
            for index in range(size):
                changed = (*indices[:position], index, *indices[position + 1 :])
                expected.append(NOWHERE if index == indices[position] else rows.get(changed, NOWHERE))
        assert table[row].tolist() == expected


def test_look_ups_out_of_range_find_nothing():
    domain = domain_of(VALUES_OF)
    assert domain.row([3, 0, 0]) == domain.row([-1, 0, 0]) == NOWHERE
    assert domain.rows(np.array([[3, 0, 0], [0, -1, 0]])).tolist() == [NOWHERE, NOWHERE]
    assert domain.allowed([5]).tolist() == [0, 0]
    with pytest.raises(ValueError, match="at most 2 values, not 3"):
        domain.allowed([0, 0, 0])


def test_a_refusal_names_the_rule_and_the_numbers():
    domain = domain_of(VALUES, CONSTANTS, RESTRICTIONS)
    chosen = [VALUES["block_size_x"].index(256), VALUES["block_size_y"].index(16), 0, 0, 0, 0, 0]
    rule = "32 <= block_size_x * block_size_y <= 1024"
    assert domain.why_not(chosen) == f"restriction: {rule} does not hold for block_size_x=256, block_size_y=16"
    assert domain.why_not([9, 0, 0, 0, 0, 0, 0]) == "unknown_index: block_size_x runs from 0 to 7, not to 9"
    assert domain.why_not(domain.configurations[17].tolist()) is None


def test_a_refusal_without_known_rules_says_what_is_not_there():
    domain = Domain((Parameter("x", (1, 2)), Parameter("y", (5, 6))), np.array([[0, 0], [1, 1]], np.uint16))
    assert domain.why_not([0, 1]) == "not_allowed: x=1, y=6 is none of the 2 configurations"


def test_a_label_is_spelled_in_the_order_of_the_recording():
    domain = Domain(
        (Parameter("x", (1, 2)), Parameter("y", (5, 6))), np.array([[1, 0]], np.uint16), {"k": 9}, ("y", "k", "x")
    )
    assert domain.label(0) == "5,9,2"


@pytest.mark.parametrize(
    ("configurations", "message"),
    [
        ([[0, 1], [0, 0]], r"configuration 1 of 2, \[0, 0\], stands out of order"),
        ([[0, 1], [0, 1]], r"configuration 1 of 2, \[0, 1\], occurs twice"),
        ([[0, 0], [0, 2]], "configuration 1: parameter y has 2 values, none at index 2"),
        (np.zeros((0, 2)), "there is no configuration"),
        ([[0, 0, 0]], "a table of uint16 with 2 columns, not uint16 1x3"),
    ],
)
def test_a_domain_that_is_none_is_refused(configurations, message):
    parameters = (Parameter("x", (1, 2)), Parameter("y", (5, 6)))
    with pytest.raises(SpaceError, match=message):
        Domain(parameters, np.array(configurations, np.uint16))


def test_a_parameter_has_values_and_none_of_them_twice():
    with pytest.raises(SpaceError, match="parameter x has 1 to 65,536 values, not 0"):
        Parameter("x", ())
    with pytest.raises(SpaceError, match="parameter x lists a value twice"):
        Parameter("x", (1, 2, 1))
