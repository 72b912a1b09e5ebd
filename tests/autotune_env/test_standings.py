"""Standings are kept, gone on from and added to, and their page says what they are."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from envs.autotune_env import standings, suite
from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.score import aggregate, scale
from envs.autotune_env.scoring import score_optimizers
from envs.autotune_env.simulate import FEWEST, repeat
from envs.autotune_env.standings import Asked, StandingsFile, judge, total
from envs.autotune_env.synthetic import synthetic

SPACES = ("convolution/EPYC", "convolution/H200")


def run(*arguments, spaces=SPACES):
    return CliRunner().invoke(score_optimizers, [*spaces, "--repeats", "6", *map(str, arguments)])


@pytest.fixture
def counted(monkeypatch):
    """The pairs that were judged."""
    pairs, judge = [], standings.judge
    monkeypatch.setattr(
        standings, "judge", lambda name, space, asked: pairs.append((name, space.name)) or judge(name, space, asked)
    )
    return pairs


def test_a_standing_reads_as_it_was_written():
    one = judge("random", synthetic(), Asked(5))
    assert standings.Standing.parse(json.loads(json.dumps(one.show()))) == one


def test_the_total_of_standings_is_the_score_over_the_spaces():
    spaces = [suite.load(name) for name in SPACES]
    found = total([judge("annealing", space, Asked(10)) for space in spaces])
    whole = aggregate([(scale(one), repeat(make_optimizer("annealing"), scale(one), 10)) for one in spaces])
    assert found.mean == pytest.approx(whole.mean)
    assert found.low == pytest.approx(whole.low, abs=0.15) and found.high == pytest.approx(whole.high, abs=0.15)


def test_another_optimiser_is_added_without_computing_the_rest(tmp_path, counted):
    save = tmp_path / "kept.jsonl"
    first = run("--optimizers", "random", "--save", save)
    assert first.exit_code == 0, first.output
    counted.clear()
    done = run("--optimizers", "annealing", "--save", save, "--json")
    assert counted == [("annealing", name) for name in SPACES]
    assert list(json.loads(done.stdout)["scores"]) == ["annealing", "random"]
    alone = run("--optimizers", "annealing,random", "--json")
    assert json.loads(alone.stdout) == json.loads(done.stdout)


def test_a_run_goes_on_after_a_line_that_was_cut(tmp_path, counted):
    save = tmp_path / "kept.jsonl"
    whole = run("--optimizers", "random", "--save", save, "--json").stdout
    save.write_text(save.read_text()[:-500])
    counted.clear()
    assert run("--optimizers", "random", "--save", save, "--json").stdout == whole
    assert counted == [("random", SPACES[1])]


def test_a_record_that_changed_is_judged_anew(tmp_path):
    north, east = synthetic("north"), synthetic("east")
    file = StandingsFile(tmp_path / "kept.jsonl", Asked(5))
    file.add("random", north, judge("random", north, Asked(5)))
    assert list(file.table([north, east])["random"]) == [north.name]
    assert standings.fingerprint(north) != standings.fingerprint(east)


@pytest.mark.parametrize(
    ("text", "message"), [("{}\n", "line 1: {} is not how this run judges"), (None, "line 2: no standing: KeyError")]
)
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path, text, message):
    save = tmp_path / "kept.jsonl"
    run("--optimizers", "random", "--save", save)
    lines = save.read_text().splitlines()
    save.write_text(text or "\n".join([lines[0], "{}", *lines[2:]]))
    done = run("--optimizers", "random", "--save", save)
    assert done.exit_code == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_workers_change_nothing(tmp_path):
    scores = [json.loads(run("--workers", count, "--json").stdout)["scores"] for count in (1, 2)]
    assert scores[0] == scores[1]


def test_a_limit_leaves_the_fewest_runs(space):
    one = judge("random", space, Asked(50, limit=1e-9))
    assert one.score.repeats == FEWEST


def test_an_optimiser_that_raises_is_left_out_and_named(monkeypatch):
    def fails(name, space, asked):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(standings, "judge", fails)
    done = run()
    assert done.exit_code == 2 and "random failed on convolution/EPYC: RuntimeError: no such thing" in done.stderr


def test_the_page_has_both_parts_of_the_split_and_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    report = tmp_path / "page.md"
    done = run("--optimizers", "random,annealing", "--report", report)
    assert done.exit_code == 0, done.output
    text = report.read_text()
    for part in (
        "## Spaces that are trained on",
        "| optimiser | convolution/EPYC |",
        "| optimiser | convolution/H200 |",
    ):
        assert part in text
    assert "2 optimisers on 2 spaces, 6 runs" in text
    assert report.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
