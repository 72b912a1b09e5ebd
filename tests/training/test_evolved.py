"""The evolved optimiser that ships is the program that its lineage says, and keeps the rules it was evolved under."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np

from envs.autotune_env import suite
from envs.autotune_env.optimizers import OPTIMIZERS, make_optimizer
from envs.autotune_env.score import scale, score
from envs.autotune_env.simulate import repeat
from envs.autotune_env.synthetic import synthetic
from training.design.program import load
from training.design.rendering import render
from training.design.sandbox import Measured, Sandbox

SOURCE = Path(importlib.import_module(OPTIMIZERS["evolved"].partition(":")[0]).__file__)
STORY = json.loads(SOURCE.with_suffix(".json").read_text())


def test_the_source_that_ships_is_what_the_last_of_its_lineage_renders():
    assert render(STORY["lineage"][-1]["design"]) == SOURCE.read_text()


def test_the_lineage_is_whole_and_each_program_is_younger_than_its_parents():
    numbers = [one["number"] for one in STORY["lineage"]]
    assert numbers == sorted(set(numbers))
    for one in STORY["lineage"]:
        assert one["idea"] and one["interval"][0] <= one["score"] <= one["interval"][1]
        assert all(parent in numbers and parent < one["number"] for parent in one["parents"])
    older = {parent for one in STORY["lineage"] for parent in one["parents"]}
    assert older == set(numbers[:-1])


def test_it_was_evolved_on_no_space_that_is_held_out():
    assert suite.split(STORY["settings"]["spaces"], "test") == []


def test_it_keeps_the_rules_of_the_sandbox_and_runs_there_as_it_does_outside():
    space = synthetic()
    with Sandbox([space], seconds=30) as box:
        inside = box.run(SOURCE.read_text(), 0, 2)
    assert isinstance(inside, Measured)
    runs = [repeat(one, scale(space), 2) for one in (load(SOURCE.read_text()), make_optimizer("evolved"))]
    for first, second in zip(*runs, strict=True):
        np.testing.assert_array_equal(first.losses, second.losses)


def test_it_beats_the_tuned_genetic_algorithm_on_a_space_that_nobody_trained_on():
    measure = scale(synthetic("east", 7))
    found = {
        name: score(measure, repeat(make_optimizer(name), measure, 20)).mean for name in ("evolved", "genetic-tuned")
    }
    assert found["evolved"] > found["genetic-tuned"], found
