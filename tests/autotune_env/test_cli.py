"""`leirgym spaces` and `leirgym score`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from envs.autotune_env import compact, suite
from envs.autotune_env.cli import spaces
from envs.autotune_env.optimizers import make_optimizer
from envs.autotune_env.score import scale, score
from envs.autotune_env.scoring import score_optimizers
from envs.autotune_env.simulate import repeat
from envs.autotune_env.synthetic import RESTRICTIONS, synthetic
from tests.autotune_env.caches import to_cache


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, space):
    path = tmp_path_factory.mktemp("recorded") / "cache.json"
    path.write_text(json.dumps(to_cache(space))[:-2] + ",")
    return path


@pytest.fixture
def folder(tmp_path):
    for application, device in (("made", "A100"), ("made", "W6600"), ("other", "A100")):
        (tmp_path / application).mkdir(exist_ok=True)
        (tmp_path / application / f"{device}.npz").write_bytes(compact.dump(synthetic(), samples=0))
    return tmp_path


def test_convert_makes_a_space_of_an_open_cache(recorded, tmp_path, space):
    out = tmp_path / "made" / "north.npz"
    done = run(spaces, "convert", recorded, out, "--name", "made/north", "--samples", 4, "--licence", "MIT", "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data == {
        "name": "made/north",
        "configurations": len(space),
        "failures": {"compile": 117, "runtime": 33},
        "bytes": out.stat().st_size,
    }
    found = suite.load("made/north", tmp_path)
    np.testing.assert_array_equal(found.values, space.values)
    assert found.samples.shape == (len(space), 4)
    assert found.source == {"file": "cache.json", "licence": "MIT"}


def test_convert_checks_the_record_against_the_rules(recorded, tmp_path):
    rules = tmp_path / "t1.json"
    for extra, code in ((), 0), (("unroll < 8",), 2):
        conditions = [{"Expression": text} for text in (*RESTRICTIONS, *extra)]
        rules.write_text(json.dumps({"ConfigurationSpace": {"Conditions": conditions}}))
        done = run(spaces, "convert", recorded, tmp_path / "x.npz", "--rules", rules)
        assert done.exit_code == code, done.output
    assert "is recorded and not allowed" in done.stderr
    assert suite.load(tmp_path / "x.npz").domain.restrictions == RESTRICTIONS


def test_what_can_not_be_converted_is_said_in_one_line(recorded, tmp_path):
    done = run(spaces, "convert", recorded, tmp_path / "x.json")
    assert done.exit_code == 2 and "x.json: a compact space is a .npz file" in done.stderr
    broken = tmp_path / "broken.json"
    broken.write_text(recorded.read_text()[:-200])
    done = run(spaces, "convert", broken, tmp_path / "x.npz")
    assert done.exit_code == 2 and "broken.json: line" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x.npz").exists()


def test_list_names_spaces_and_splits_them(folder):
    done = run(spaces, "list", "--folder", folder)
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["name", "made/A100", "made/W6600", "other/A100"]
    for options, names in (
        (["--split", "test"], ["made/W6600"]),
        (["other"], ["other/A100"]),
        (["--split", "train"], ["made/A100", "other/A100"]),
    ):
        done = run(spaces, "list", "--folder", folder, *options, "--json")
        assert json.loads(done.stdout) == {"spaces": names}


def test_show_describes_a_space(space):
    done = run(spaces, "show", "synthetic0/north")
    assert done.exit_code == 0
    for line in ("configurations      3,345", "failures            compile 117, runtime 33", "filter_size: 15, fixed"):
        assert line in done.stdout
    data = json.loads(run(spaces, "show", "synthetic0/north", "--json").stdout)
    assert data["cutoff_seconds"] == scale(space).end and data["best"] == space.values[space.correct].min()
    assert data["restrictions"] == list(RESTRICTIONS) and data["parameters"]["unroll"] == [1, 2, 4, 8]


def test_an_unknown_space_is_a_usage_error():
    for command in ("show", "plot"):
        done = run(spaces, command, "none/such", *(["--out", "x.png"] if command == "plot" else []))
        assert done.exit_code == 2 and "no space is called 'none/such'" in done.stderr


def test_plot_draws_an_image(tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "space.png"
    assert run(spaces, "plot", "synthetic0/north", "--out", out).exit_code == 0
    assert out.read_bytes()[:4] == b"\x89PNG"
    done = run(spaces, "plot", "synthetic0/north", "--out", tmp_path / "space.xyz")
    assert done.exit_code == 2 and "space.xyz" in done.stderr


def test_plot_without_matplotlib_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    done = run(spaces, "plot", "synthetic0/north", "--out", tmp_path / "space.png")
    assert done.exit_code == 3 and "pip install 'leirgym[plot]'" in done.stderr


def test_score_prints_each_space_and_all(space):
    done = run(score_optimizers, "synthetic0/north", "synthetic0/east", "--repeats", 6, "--seed", 3, "--json")
    assert done.exit_code == 0, done.output
    scores = json.loads(done.stdout)["scores"]["random"]
    assert list(scores) == ["synthetic0/north", "synthetic0/east", "all"]
    measure = scale(space)
    assert scores["synthetic0/north"]["mean"] == score(measure, repeat(make_optimizer("random"), measure, 6, 3), 3).mean
    text = run(score_optimizers, "synthetic0/north", "--repeats", 6).stdout
    assert [line.split()[0] for line in text.splitlines()] == ["space", "synthetic0/north", "all"]


def test_score_goes_by_a_split(folder):
    for options, expected in (
        (["--split", "test"], ["made/W6600"]),
        (["--split", "train", "--by", "application"], ["made/A100", "made/W6600", "other/A100"]),
    ):
        done = run(score_optimizers, "--folder", folder, "--repeats", 2, *options, "--json")
        assert done.exit_code == 0, done.output
        assert list(json.loads(done.stdout)["scores"]["random"]) == [*expected, "all"]


def test_score_without_any_space_says_what_there_is(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "SHIPPED", tmp_path)
    done = run(score_optimizers)
    assert done.exit_code == 2 and "space= names a tuning space: none ships" in done.stderr


def test_recorded_runs_are_scored(tmp_path, space):
    measure = scale(space)
    runs = repeat(make_optimizer("random"), measure, 5)
    path = tmp_path / "runs.json"
    items = [
        {"seconds": one.seconds.tolist(), "values": [None if np.isnan(v) else v for v in one.losses.tolist()]}
        for one in runs
    ]
    path.write_text(json.dumps({space.name: items}))
    done = run(score_optimizers, "synthetic0/north", "--runs", path, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["scores"]["runs.json"][space.name]["mean"] == score(measure, runs).mean


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "'synthetic0/north' is missing"),
        ('{"synthetic0/north": []}', "a score needs a space, and a run on each space"),
        ('{"synthetic0/north": [{"seconds": [2, 1], "values": [1, 1]}]}', "the clock of a run never falls"),
        ('{"synthetic0/north": [{"seconds": [1]}]}', "'values' is missing"),
        ('{"synthetic0/north": [1]}', "runs.json"),
        ("[", "runs.json"),
    ],
)
def test_what_are_no_runs_is_a_usage_error(tmp_path, content, message):
    path = tmp_path / "runs.json"
    path.write_text(content)
    done = run(score_optimizers, "synthetic0/north", "--runs", path)
    assert done.exit_code == 2 and message in done.stderr, done.output


def test_score_compares_optimizers_and_their_variants():
    pytest.importorskip("pyatf")
    names = "random,annealing,pyatf:torczon"
    done = run(score_optimizers, "synthetic0/north", "synthetic0/east", "--repeats", 2, "--optimizers", names, "--json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert list(data["scores"]) == names.split(",")
    for name, scores in data["scores"].items():
        assert data["medians"][name] == np.median([one["mean"] for space, one in scores.items() if space != "all"])
    text = run(score_optimizers, "synthetic0/north", "synthetic0/east", "--repeats", 2, "--optimizers", names).stdout
    assert [line.split()[0] for line in text.splitlines()][-2:] == ["all", "median"]


def test_more_optimizers_than_spaces_stand_in_rows():
    done = run(score_optimizers, "synthetic0/north", "--repeats", 1, "--optimizers", "random,annealing,genetic")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["space", "random", "annealing", "genetic"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("magic", "no optimiser is called magic"),
        ("genetic:big", "optimiser genetic has no variants"),
        ("pyatf:magic", "a technique is one of auc_bandit"),
    ],
)
def test_an_optimizer_that_is_none_is_a_usage_error(names, message):
    done = run(score_optimizers, "synthetic0/north", "--optimizers", names)
    assert done.exit_code == 2 and message in done.stderr, done.output


@pytest.mark.parametrize(("name", "module"), [("pyatf", "pyatf"), ("kernel-tuner", "kernel_tuner")])
def test_an_optimizer_whose_package_is_missing_says_how_to_get_it(name, module, monkeypatch):
    for loaded in [one for one in __import__("sys").modules if one.partition(".")[0] == module]:
        monkeypatch.delitem(__import__("sys").modules, loaded)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    done = run(score_optimizers, "synthetic0/north", "--optimizers", name)
    assert done.exit_code == 3 and "pip install 'leirgym[" in done.stderr, done.output
