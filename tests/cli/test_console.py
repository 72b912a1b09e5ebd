"""The table of verbs, the exit codes, and what importing costs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import leirgym
from envs.common import doctor
from envs.common.console import Answer, BadInput, Exit, Missing, Verbs, columns, verb
from envs.common.progress import progress

HEAVY = ("tvm", "torch", "lark", "islpy", "sympy", "rich", "click")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "leirgym", "list"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "matmul_512" in done.stdout, done.stderr


def test_importing_leirgym_registers_the_environments_and_loads_nothing_heavy():
    code = f"""
import sys, leirgym, gymnasium
assert "LEIR-v0" in gymnasium.registry
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_loads_no_verb():
    code = f"""
import sys, leirgym
sys.argv = ["leirgym", "--help"]
try:
    leirgym.main()
except SystemExit as end:
    assert end.code == 0
print([name for name in {HEAVY[:-1]} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert all(f"  {name} " in done.stdout for name in leirgym.VERBS)


@verb("say")
@click.argument("word")
def say(word: str) -> Answer:
    """Say a word."""
    match word:
        case "no":
            return Answer("no", {"word": word}, Exit.NEGATIVE, notes=["a remark"])
        case "bad":
            raise BadInput("line 1, column 3: expected a word")
        case "lost":
            raise Missing("torch is not installed: pip install leirgym[torch]")
        case "stop":
            raise KeyboardInterrupt
    return Answer(word, {"word": word})


TABLE = {
    "say": (f"{__name__}:say", "Say a word."),
    "gone": ("agents.nothing_here:gone", "Not there."),
    "needy": ("tests.cli.needs_absent:needy", "Needs what is not installed."),
}


def run(*arguments: str):
    return CliRunner().invoke(Verbs(TABLE), list(arguments))


@pytest.mark.parametrize(
    ("word", "code", "out", "err"),
    [
        ("yes", 0, "yes\n", ""),
        ("no", 1, "no\n", "a remark\n"),
        ("bad", 2, "", "Error: line 1, column 3: expected a word\n"),
        ("lost", 3, "", "Error: torch is not installed: pip install leirgym[torch]\n"),
        ("stop", 130, "", "interrupted\n"),
    ],
)
def test_exit_codes_and_streams(word, code, out, err):
    result = run("say", word)
    assert (result.exit_code, result.stdout, result.stderr) == (code, out, err)


@pytest.mark.parametrize(
    ("word", "data"),
    [
        ("yes", {"word": "yes"}),
        ("no", {"word": "no"}),
        ("bad", {"error": "line 1, column 3: expected a word"}),
        ("lost", {"error": "torch is not installed: pip install leirgym[torch]"}),
    ],
)
def test_json_is_one_object_on_standard_output(word, data):
    assert json.loads(run("say", word, "--json").stdout) == data


def test_an_unknown_verb_or_option_is_a_usage_error():
    assert run("sing").exit_code == run("say", "yes", "--loud").exit_code == run("say").exit_code == 2


def test_a_verb_whose_package_is_shadowed_names_the_file():
    result = run("gone")
    assert result.exit_code == 3
    assert "agents.nothing_here is not there: package agents comes from" in result.stderr
    assert "agents/__init__.py; see leirgym doctor" in result.stderr


def test_a_verb_that_lacks_a_dependency_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tests.cli.needs_absent", None)
    assert run("needy").exit_code == 3


def test_columns_line_up():
    assert columns([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"


def origins(**changes: str | None) -> dict[str, Path | None]:
    places = {name: f"/here/{name}/__init__.py" for name in doctor.PACKAGES} | {"leirgym": "/here/leirgym.py"}
    return {name: place and Path(place) for name, place in (places | changes).items()}


def test_doctor_is_content_when_every_package_is_beside_leirgym():
    assert doctor.shadows(origins(), {"agents": ["leirgym"]}) == []
    assert doctor.shadows({name: doctor.origin(name) for name in doctor.PACKAGES}, doctor.providers()) == []


def test_doctor_names_the_distribution_that_shadows_a_package():
    [warning] = doctor.shadows(origins(agents="/there/agents/__init__.py"), {"agents": ["leirgym", "rivals"]})
    assert warning == (
        "package agents comes from /there/agents/__init__.py, not from /here; rivals installs that name too"
    )


def test_doctor_warns_of_a_rival_that_does_not_win_yet():
    [warning] = doctor.shadows(origins(), {"agents": ["leirgym", "rivals"]})
    assert warning.startswith("package agents is ours here; rivals installs that name too")


def test_doctor_misses_a_package():
    assert doctor.shadows(origins(training=None), {}) == ["package training can't be found"]


def test_a_foreign_package_before_ours_on_the_path_is_named(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import leirgym"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"ImportError: package envs comes from {tmp_path}/envs/__init__.py" in done.stderr


def test_doctor_reports_an_empty_and_a_damaged_store(tmp_path):
    assert doctor.store(tmp_path / "none.sqlite")["size"] == "not there yet"
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_text("not a database, and long enough for its header to be read as one" * 20)
    assert doctor.store(damaged)["evaluations"].startswith("unreadable: ")


def test_doctor_prints_its_sections():
    result = CliRunner().invoke(doctor.doctor, ["--json"])
    report = json.loads(result.stdout)
    assert list(report) == ["versions", "compiler", "tools", "devices", "store", "packages", "warnings"]
    assert report["compiler"]["llvm host cpu"]
    assert set(report["packages"]) == set(doctor.PACKAGES)


def test_progress_writes_a_line_every_few_seconds_and_the_last():
    stream, ticks = io.StringIO(), iter([0.0, 0.0, 0.0, 2.0, 6.0, 6.0, 7.0, 7.0])
    with progress("search", 4, stream, lambda: next(ticks)) as report:
        for done in range(1, 5):
            report(done, f"best {done}x")
    assert stream.getvalue().splitlines() == [
        "search 1/4  best 1x",
        "search 3/4  best 3x",
        "search 4/4  best 4x",
    ]


def test_progress_draws_a_bar_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress("search", 2, stream) as report:
        report(1, "best 1.5x [bold]")
    assert "search" in stream.getvalue()
