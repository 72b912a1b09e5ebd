"""What a program may contain."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from envs.autotune_env.optimizers.search import Searcher
from training.design import grammar
from training.design.program import ProgramError, check, load
from training.design.rendering import render

HEAD = "from envs.autotune_env.optimizers.search import Searcher, View, Search\n"


def program(*body, head=""):
    lines = "\n".join(f"        {line}" for line in body)
    return f"{HEAD}{head}\nclass Mine(Searcher):\n    def search(self, view):\n{lines}\n        yield 0\n"


def test_a_permitted_program_loads():
    source = program("x = math.sqrt(2.0)", "best = heapq.nsmallest(2, [3, 1])", head="import math\nimport heapq\n")
    assert check(source) is None and isinstance(load(source), Searcher)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (program(head="import socket\n"), "import: socket may not be imported"),
        (program(head="import os.path\n"), "import: os.path"),
        (program(head="from functools import cached_property\n"), "import: cached_property may not be imported from"),
        (program(head="from collections import _sys\n"), "import: _sys"),
        (program(head="from math import *\n"), r"import: \*"),
        (program(head="from . import x\n"), "import: x may not"),
        (program("open('x', 'w')"), "name: open may not be used"),
        (program("eval('1')"), "name: eval"),
        (program("__import__('os')"), "name: __import__"),
        (program("x = view.__class__"), "attribute: .__class__"),
        (program("x = view._near"), "attribute: ._near"),
        (program("x = self.search(view).gi_frame"), "attribute: .gi_frame"),
        (program("view.spent = 0"), "attribute: only attributes of self may be set, not .spent"),
        (program("View.sample = None"), "attribute: only attributes of self"),
        (program("view.record(0, -1.0)"), "attribute: .record"),
        (program("match view:", "    case object(domain=d): pass"), "syntax: a pattern may not look at attributes"),
        (program("try:", "    x = 1", "except:", "    pass"), "syntax: an except clause names what it catches"),
        (program("try:", "    x = 1", "except BaseException:", "    pass"), "name: BaseException"),
        ("class Mine:\n    pass\n", "contract: a program has one class that derives from Searcher, not 0"),
        (HEAD + "class Mine(Searcher):\n    x = 1\n", r"contract: class Mine has no method search"),
        (
            HEAD + "class M(Searcher):\n    def search(self, view):\n        return 1\n",
            "contract: M.search never yields",
        ),
        ("def f(:", "syntax: "),
        ("x" * 30_000, "size: a program has at most 20,000 characters"),
    ],
)
def test_a_forbidden_program_is_refused_with_the_reason(source, problem):
    with pytest.raises(ProgramError, match=problem):
        load(source)


def test_an_import_hidden_from_the_tree_finds_no_way():
    scope = {}
    with pytest.raises(ImportError, match="os may not be imported"):
        from training.design.program import _import

        scope["os"] = _import("os")


def test_every_design_is_a_permitted_and_readable_program():
    rng = Random(0)
    for _ in range(150):
        design = grammar.fresh(rng)
        source = render(design)
        assert check(source) is None, source
        assert render(grammar.effective(design)) == source


def test_designs_that_differ_in_effect_differ_in_text():
    rng = Random(1)
    designs = [grammar.effective(grammar.fresh(rng)) for _ in range(200)]
    for first, second in itertools.combinations(designs, 2):
        if first != second:
            assert render(first) != render(second)


def test_operators_stay_in_the_grammar_and_do_what_they_say():
    rng = Random(2)
    for _ in range(100):
        first, second = grammar.fresh(rng), grammar.fresh(rng)
        refined, simple, crossed = (
            grammar.refine(first, rng),
            grammar.simplify(first, rng),
            grammar.cross(first, second, rng),
        )
        for design in (refined, simple, crossed):
            assert all(design[gene] in choices for gene, choices in grammar.GENES.items())
        mattered = set(grammar.GENES) - grammar.idle(first)
        assert sum(refined[gene] != first[gene] for gene in mattered) <= 2
        assert sum(simple[gene] != first[gene] for gene in first) <= 1
        assert all(crossed[gene] in (first[gene], second[gene]) for gene in first)
    off = grammar.fresh(rng) | grammar.SIMPLEST
    assert grammar.simplify(off, rng) == off
