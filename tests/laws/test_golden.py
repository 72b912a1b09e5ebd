"""One golden file for each strategy, to be read by people: a program, an action, and what comes of it.

A file starts with the program, an empty line and the action; the rest is what the strategy says and makes.
`python -m tests.laws.test_golden` completes every file anew.
"""

from pathlib import Path

import pytest

from envs.common.actions import parse_action
from envs.leir_env import strategies
from envs.leir_env.parser import parse
from envs.leir_env.printer import show
from envs.leir_env.strategies import REGISTRY
from envs.leir_env.verify import verify

FOLDER = Path(__file__).parents[1] / "golden" / "strategies"


def complete(text: str) -> str:
    """The whole golden file whose program and action `text` starts with."""
    program, rest = text.split("\n\n", 1)
    before, action = parse(program + "\n"), parse_action(rest.split("\n", 1)[0])
    assert verify(before) == ()
    outcome = strategies.apply(before, action)
    assert verify(outcome.program) == ()
    reason = strategies.rationale(before, action)
    return f"{show(before)}\n{action}\n{reason}\n{outcome.exactness.name}\n\n{show(outcome.program)}"


def test_every_strategy_has_an_example() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_example_reads_as_its_golden_file(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    assert complete(text) == text
    assert text.split("\n\n", 1)[1].startswith(f"{name}(")


if __name__ == "__main__":
    for file in sorted(FOLDER.iterdir()):
        file.write_text(complete(file.read_text()))
