"""The examples of the catalogue, one for each strategy, are what the strategies make of them; the page is up to date.

`python -m envs.leir_env.catalogue` completes the examples and writes the page anew.
"""

from pathlib import Path

import pytest

from envs.leir_env.catalogue import EXAMPLES, complete, entry, example, page
from envs.leir_env.strategies import REGISTRY
from envs.leir_env.verify import load

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"


def test_every_strategy_has_an_example() -> None:
    assert {file.stem for file in EXAMPLES.iterdir()} == set(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_example_is_what_the_strategy_makes_of_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.txt").read_text()
    assert complete(text) == text
    shown = example(name)
    assert shown.action.startswith(f"{name}(")
    for program in (shown.before, shown.after):
        load(program, REGISTRY[name].targets[0])


@pytest.mark.parametrize("name", REGISTRY)
def test_the_entry_of_the_catalogue_has_everything(name: str) -> None:
    text = entry(REGISTRY[name])
    shown = example(name)
    for part in (name, "Requires:", "Rewrite:", shown.before, shown.after, shown.reason, "shipped workloads"):
        assert part in text


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page()
