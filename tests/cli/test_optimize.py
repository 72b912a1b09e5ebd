"""`leirgym optimize` and what takes its traces, on programs that take milliseconds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import leirgym
from agents.base import Budget, Ended, make_agent
from agents.report import Report
from envs.common import trace as traces
from envs.common.console import Verbs
from envs.common.evaluation import Status
from envs.common.store import Store
from tests.common.toy_problem import ToyProblem

SUM = "i:64 j:128\nA:f32[i,j] -> B:f32[i]\nL_i,j B[i] += A[i,j]\n"
WRONG = "i:64 j:128\nA:f32[i,j] -> B:f32[i]\nL_i,j B[i] += A[i,j]*A[i,j]\n"
OTHER = "i:64\nA:f32[i] -> B:f32[i]\nL_i B[i] = A[i]\n"
COMMAND = [sys.executable, "-c", "import leirgym; leirgym.main()", "optimize", "-", "--json"]


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(Verbs(leirgym.VERBS), list(arguments), input=stdin)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[dict, Path, Path]:
    """The report of a short search, its trace file, and its store."""
    folder = tmp_path_factory.mktemp("optimize")
    trace, store = folder / "trace.json", folder / "store.sqlite"
    options = ["--budget", "5", "--store", str(store), "--out", str(trace), "--json"]
    result = run("optimize", SUM, *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), trace, store


def test_a_search_reports_what_it_found_and_how_it_was_verified(found):
    report, _, _ = found
    assert report["evaluations"] == len(report["curve"]) == 5
    assert report["before"] == SUM
    assert report["ended"] == "evaluations"
    assert report["evaluation"]["status"] in ("ok", "slower")
    assert set(report["speedups"]) == {"root", "default schedule"}
    for figure in report["speedups"].values():
        assert figure["low"] <= figure["ratio"] <= figure["high"]
    assert [step["action"] for step in report["steps"]] == ["(root)", *report["actions"]]
    assert report["torch"] == "no PyTorch definition is known"


def test_progress_goes_to_standard_error_only(found):
    _, _, store = found
    result = run("optimize", SUM, "--budget", "2", "--store", str(store))
    assert "beam 2/2" in result.stderr and "beam 2/2" not in result.stdout
    assert result.stdout.startswith("text: beam, seed 0, 2 evaluations")
    assert "verified speedup" in result.stdout and "input sets" in result.stdout


def test_the_trace_holds_and_replays_without_the_text_it_came_from(found):
    report, trace, _ = found
    assert run("verify", str(trace)).exit_code == 0
    replayed = run("replay", str(trace), "--json")
    assert replayed.exit_code == 0, replayed.output
    steps = json.loads(replayed.stdout)["steps"]
    assert steps[0]["program"] == SUM and steps[-1]["program"] == report["after"]


def test_a_trace_that_was_tampered_with_does_not_hold(found, tmp_path):
    _, trace, _ = found
    data = json.loads(trace.read_text())
    data["root"] = "0" * 32
    data["evaluations"] = []
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(data))
    result = run("verify", str(changed))
    assert result.exit_code == 1 and "key_differs" in result.stdout


def test_a_second_search_takes_everything_from_the_store(found):
    report, _, store = found
    again = json.loads(run("optimize", SUM, "--budget", "5", "--store", str(store), "--json").stdout)
    assert again["from_store"] == again["evaluations"] == 5
    assert {k: again[k] for k in ("after", "curve")} == {k: report[k] for k in ("after", "curve")}


def test_verify_judges_a_program_against_a_workload(found, tmp_path):
    report, _, store = found
    root = tmp_path / "root.leir"
    root.write_text(SUM)
    options = ["--store", str(store)]
    good = run("verify", report["after"], str(root), *options)
    assert good.exit_code == 0 and "the default schedule" in good.stdout
    wrong = run("verify", WRONG, str(root), *options)
    assert wrong.exit_code == 1 and wrong.stdout.startswith("wrong: ")
    other = run("verify", OTHER, str(root), *options)
    assert other.exit_code == 1 and "interface" in other.stdout


def optimize(store: Path, evaluations: int = 6) -> subprocess.Popen:
    command = [*COMMAND, "--store", str(store), "--budget", str(evaluations), "--agent", "random"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdin.write(SUM)
    process.stdin.close()
    process.stdin = None
    return process


def count(store: Path) -> int:
    if not store.exists():
        return 0
    opened = Store(store)
    number = len(opened)
    opened.close()
    return number


def test_a_killed_search_resumes_from_its_store(tmp_path):
    store = tmp_path / "store.sqlite"
    rng = np.random.default_rng(0)
    for kept in (1, 3):
        process = optimize(store)
        deadline = time.monotonic() + 120
        while count(store) < kept and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.communicate()
        assert count(store) >= kept
    before = count(store)
    out, err = optimize(store).communicate(timeout=200)
    report = json.loads(out)
    assert report["from_store"] == before, err
    assert report["evaluations"] == 6


def test_ctrl_c_prints_the_best_so_far(tmp_path):
    store = tmp_path / "store.sqlite"
    process = optimize(store, 10_000)
    deadline = time.monotonic() + 120
    while count(store) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert report["ended"] == "interrupted" and report["evaluation"]["status"] in ("ok", "slower")
    assert "interrupted: this is the best so far" in err


def test_a_module_is_imported_and_raced_against_torch(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n\nprint('no JSON')\n\nclass Scale(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.scale = torch.nn.Parameter(torch.randn(64))\n\n"
        "    def forward(self, x):\n        return self.scale * x.sum(-1)\n"
    )
    options = ["--inputs", "f32[64,128]", "--budget", "2", "--store", str(tmp_path / "s.sqlite"), "--json"]
    result = run("optimize", f"{file}:Scale", *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["torch"] is None and any(name.startswith("torch ") for name in report["speedups"])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none.py:A", "Error: none.py:A: no file none.py\n"),
        ("model.py:Absent", "Error: model.py:Absent: Absent is not defined in model.py; it has none\n"),
        ("model.py", "Error: model.py: expected file.py:Class, got 'model.py'\n"),
        (SUM, "Error: --inputs goes with file.py:Class, not with i:64 j:128"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_bad_input(what, message, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("import torch\n")
    result = run("optimize", what, "--inputs", "f32[2]")
    assert result.exit_code == 2 and not result.stdout
    assert message in result.stderr and result.stderr.count("\n") == 1


def toy_report(problem: ToyProblem, evaluations: int = 12) -> Report:
    result = make_agent("beam").solve(problem, Budget(evaluations), np.random.default_rng(0))
    trace = traces.record(problem, result.actions)
    return Report("toy", result, trace, "beam", 0, problem.show(problem.root), "", 0, "no PyTorch definition is known")


def test_a_report_combines_the_intervals_of_result_and_root():
    (root, baseline) = toy_report(ToyProblem()).speedups()
    assert (root.over, baseline.over) == ("root", "middle")
    assert root.low == pytest.approx(root.ratio * 0.99 / 1.01)
    assert root.high == pytest.approx(root.ratio * 1.01 / 0.99)


def test_a_report_of_nothing_verified_claims_no_speedup():
    failures = {(a, b, c): Status.WRONG for a in range(5) for b in range(a, 5) for c in range(b, 5)}
    report = toy_report(ToyProblem(failures=failures))
    assert report.speedups() == () and report.result.ended is Ended.EVALUATIONS
    assert "nothing verified: the program itself is wrong, dials 0-0-0: wrong" in report.text()
    assert report.to_json()["evaluation"] is None


def test_a_report_of_no_improvement_says_so():
    text = toy_report(ToyProblem(landscape=lambda state: -sum(state))).text()
    assert "nothing faster than the program itself was found" in text
