"""A study goes on after whatever happens, and ends where it would have."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.synthetic import synthetic
from tests.training.test_program import program as written
from training.design.archive import Archive, ArchiveError, read
from training.design.briefing import INFO
from training.design.comparison import compare, table
from training.design.designers import Draft, Grammar, LanguageModel, read_answer
from training.design.llamea import evaluator
from training.design.program import load
from training.design.race import Result, Rung
from training.design.sandbox import Failed, Measured, Sandbox
from training.design.study import Plan, lineage, run, survivors
from training.design_optimizer import design

PLAN = Plan(programs=8, survivors=3, founders=4, rungs=(2, 4))
SETTINGS = {"spaces": ["synthetic0/north"], "seed": 0}
GOOD = written("while True:", "    yield view.fresh()")


@pytest.fixture(scope="module")
def box():
    with Sandbox([synthetic()], seconds=60.0) as made:
        yield made


def strip(records):
    """Records without what depends on the machine."""
    return [
        (one.number, one.operator, one.parents, one.source, one.result.rungs, one.result.failure) for one in records
    ]


def test_a_study_repeats_and_improves(box, tmp_path):
    archives = [Archive(tmp_path / name, SETTINGS) for name in ("a", "b")]
    best = [run(PLAN, Grammar(), box, archive) for archive in archives]
    assert strip(archives[0].records) == strip(archives[1].records)
    assert len(best[0]) == PLAN.survivors and best[0] == survivors(archives[0].records, PLAN.survivors)
    assert [one.operator for one in archives[0].records[:4]] == ["new"] * 4
    for one in archives[0].records:
        assert all(parent < one.number for parent in one.parents)


def test_how_many_processes_run_a_program_makes_no_difference(box):
    with Sandbox([synthetic()], seconds=60.0, workers=2) as pair:
        for begin, end in ((0, 1), (1, 4)):
            alone, together = box.run(GOOD, begin, end, 3), pair.run(GOOD, begin, end, 3)
            for name, curves in alone.curves.items():
                np.testing.assert_array_equal(curves, together.curves[name])
        assert isinstance(pair.run(written("while True:", "    yield -1"), 0, 4), Failed)
        assert isinstance(pair.run(GOOD, 0, 2), Measured)


@pytest.mark.parametrize("cut", [0, 40])
def test_a_study_that_was_cut_off_ends_as_if_it_had_not_been(box, tmp_path, cut):
    whole, part = Archive(tmp_path / "whole", SETTINGS), tmp_path / "part"
    run(PLAN, Grammar(), box, whole)
    lines = whole.path.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:5]) + lines[5][:cut])
    again = Archive(part, SETTINGS)
    assert len(again.records) == 4
    run(PLAN, Grammar(), box, again)
    assert strip(again.records) == strip(whole.records)
    assert strip(read(part)[1]) == strip(whole.records)


def test_a_killed_study_loses_one_program_at_most(tmp_path):
    path = tmp_path / "study.jsonl"
    arguments = ["synthetic0/north", "--archive", str(path), "--programs", "500", "--rungs", "1,2"]
    command = "from training.design_optimizer import design; design()"
    process = subprocess.Popen([sys.executable, "-c", command, *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not path.exists() or path.read_bytes().count(b"\n") < 3):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, records = read(path)
    assert [one.number for one in records] == list(range(len(records))) and len(records) >= 2


def test_an_archive_of_another_study_is_refused(tmp_path):
    Archive(tmp_path / "a", SETTINGS)
    with pytest.raises(ArchiveError, match="archive of another study: seed differ"):
        Archive(tmp_path / "a", SETTINGS | {"seed": 1})
    (tmp_path / "b").write_text('{"settings": {}}\nnonsense\n')
    with pytest.raises(ArchiveError, match="line 2 is no JSON"):
        Archive(tmp_path / "b", {})


def record(number, fitness, rungs=1, parents=(), failure=""):
    steps = tuple(Rung(5 * 4**step, fitness, fitness, fitness) for step in range(rungs))
    return SimpleNamespace(
        number=number, parents=parents, fitness=fitness, result=Result(steps, {"a/b": fitness}, failure)
    )


def test_survivors_are_those_that_came_furthest_then_the_best():
    records = [record(0, 0.9), record(1, 0.5, 3), record(2, 0.6, 3), record(3, 0.99, 3, failure="raised: x")]
    assert [one.number for one in survivors(records, 2)] == [2, 1]
    assert [one.number for one in survivors(records, 9)] == [2, 1, 0]


def test_lineage_is_oldest_first():
    records = [record(0, 0), record(1, 0), record(2, 0, parents=(0, 1)), record(3, 0, parents=(2, 0)), record(4, 0)]
    assert [one.number for one in lineage(records, 3)] == [0, 1, 2, 3]


class Mixed:
    """Proposes what is bad in turn with what is good."""

    name = "mixed"

    def __init__(self):
        bodies = [("while True:", "    yield -1"), ("raise ValueError('x')",), ("yield 'x'",)]
        self.sources = itertools.cycle([*(written(*body) for body in bodies), "import os\n", "def f(:"])
        self.count = 0

    def propose(self, operator, parents, best, rng: Random):
        self.count += 1
        source = next(self.sources) if self.count % 2 else GOOD
        return Draft(f"{source}# {self.count}\n", "idea")


def test_failures_are_records_with_reasons_and_the_study_goes_on(box, tmp_path):
    archive = Archive(tmp_path / "a", SETTINGS)
    best = run(Plan(10, 3, 2, (1, 2)), Mixed(), box, archive)
    codes = [one.result.failure.partition(":")[0] for one in archive.records]
    assert codes == ["illegal", "", "raised", "", "contract", "", "import", "", "syntax", ""]
    assert len(best) == 3 and all(not one.result.failure for one in best)


def test_a_designer_that_repeats_itself_is_recorded_as_such(box, tmp_path):
    class Same:
        name = "same"

        def propose(self, operator, parents, best, rng):
            return Draft(GOOD, "again")

    archive = Archive(tmp_path / "a", SETTINGS)
    run(Plan(2, 3, 2, (1,)), Same(), box, archive)
    assert archive.records[1].result.failure.startswith("repeated: ")


def test_a_language_model_hears_scores_and_errors_and_its_program_runs(box, tmp_path):
    asked = []
    answers = iter(
        [
            f"Idea: go at random.\n```python\n{GOOD}```\nThat's it.",
            f"Idea: fail.\n```python\n{written('raise KeyError(view.spent)')}```",
            f"**Idea:** more.\n```\n{GOOD}# more\n```",
        ]
    )

    def complete(messages):
        asked.append(messages)
        return next(answers)

    archive = Archive(tmp_path / "a", SETTINGS)
    model = LanguageModel(complete, "fake", INFO["application"]([synthetic()]))
    run(Plan(3, 2, 1, (2,)), model, box, archive)
    assert [one.idea for one in archive.records] == ["go at random.", "fail.", "more."]
    assert archive.records[1].result.failure == "raised: KeyError: 0.0"
    assert [message["role"] for message in asked[0]] == ["system", "user"]
    assert "scored" in asked[1][1]["content"] and "go at random." in asked[1][1]["content"]
    assert (
        "class Mine(Searcher)"
        in LanguageModel(complete, "fake").conversation("refine", archive.records[:1], [])[1]["content"]
    )


def test_a_failure_is_shown_to_the_model():
    model = LanguageModel(lambda messages: "", "fake")
    failed = record(0, 0.0, failure="raised: ValueError: bad")
    failed.source, failed.idea = GOOD, "x"
    assert "failed, raised: ValueError: bad" in model.conversation("refine", [failed], [])[1]["content"]


def test_an_answer_without_a_program_is_no_exception():
    assert read_answer("I can't do that.").source == "I can't do that.\n"
    assert read_answer("").idea == "no idea was stated"


def test_what_the_model_is_told_depends_on_info_and_never_holds_results():
    space = synthetic()
    texts = {name: told([space]) for name, told in INFO.items()}
    assert texts["none"] == ""
    assert "block_size_x" in texts["space"] and "synthetic0/north" not in texts["space"]
    assert "synthetic0/north" in texts["application"]
    best = f"{space.values[space.correct].min():.4g}"
    assert all(best not in text for text in texts.values())


def test_llamea_solutions_get_scores_or_reasons(box):
    told = []

    def solution(code):
        return SimpleNamespace(code=code, set_scores=lambda *given: told.append(given))

    evaluate = evaluator(box, repeats=2)
    for code in (GOOD, written("raise ValueError('x')")):
        evaluate(solution(code), None)
    assert -2 < told[0][0] < 1 and "synthetic0/north" in told[0][1]
    assert told[1] == (float("-inf"), "It failed: raised: ValueError: x", "raised: ValueError: x")


def call(*arguments):
    return CliRunner().invoke(design, [str(argument) for argument in arguments])


def test_the_command_designs_resumes_and_compares(tmp_path):
    path, out = tmp_path / "study.jsonl", tmp_path / "best.py"
    given = [
        "synthetic0/north",
        "--archive",
        path,
        "--rungs",
        "1,2",
        "--seconds",
        60,
        "--founders",
        2,
        "--survivors",
        2,
    ]
    assert call(*given, "--programs", 2).exit_code == 0
    done = call(*given, "--programs", 4, "--test", "synthetic1/east", "--repeats", 2, "--out", out, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["programs"] == 4 and len(data["survivors"]) == 2
    assert set(data["held_out"]) == {"designed", "genetic-tuned", "annealing-tuned", "evolution-tuned"}
    assert out.read_text() == data["survivors"][0]["source"] and load(out.read_text())
    story = json.loads(out.with_suffix(".json").read_text())
    assert [one["number"] for one in story["lineage"]] == data["lineage"] and story["programs"] == 4
    assert story["command"].startswith("leirgym design synthetic0/north --programs 4 --survivors 2")
    assert data["lineage"][-1] == data["survivors"][0]["number"]


def test_the_command_asks_a_model(tmp_path):
    script = tmp_path / "script.txt"
    script.write_text(f"Idea: a\n```python\n{GOOD}```\n---\nIdea: b\n```python\n{GOOD}# b\n```")
    done = call(
        "synthetic0/north", "--archive", tmp_path / "a", "--rungs", 1, "--programs", 2, "--model", f"script:{script}"
    )
    assert done.exit_code == 0, done.output
    assert "2 programs, 0 of them failed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none/such"], 2, "no space is called"),
        (["synthetic0/north", "--test", "synthetic0/north"], 2, "synthetic0/north is trained on"),
        (["synthetic0/north", "--rungs", "5,5"], 2, "--rungs: they rise"),
        (["synthetic0/north", "--rungs", "x"], 2, "--rungs: numbers with commas"),
        (["synthetic0/north", "--info", "space"], 2, "--info goes with --model"),
        (["synthetic0/north", "--model", "nowhere"], 3, "there is no model 'nowhere'"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_one_line(tmp_path, arguments, code, message):
    done = call(*arguments, "--archive", tmp_path / "a")
    assert done.exit_code == code and message in done.stderr, done.output


def test_a_comparison_states_the_gain_over_the_best_baseline():
    names = ("random", "genetic-tuned", "annealing-tuned")
    found = compare({name: make_optimizer(name) for name in names}, [synthetic(), synthetic("east", 1)], repeats=3)
    totals = {name: scores["all"].mean for name, scores in found.scores.items()}
    best = max(totals[name] for name in names[1:])
    assert found.gain == pytest.approx((totals["random"] - best) / abs(best))
    assert found.low <= found.gain <= found.high
    for name, scores in found.scores.items():
        single = [scores[space].mean for space in scores if space != "all"]
        assert totals[name] == pytest.approx(sum(single) / 2)
    assert "random above the best of the others by" in table(found)


def test_an_optimizer_compared_with_itself_leads_by_nothing():
    one = make_optimizer("annealing")
    found = compare({"a": one, "b": one}, [synthetic()], repeats=4)
    assert (found.gain, found.low, found.high) == (0, 0, 0)
