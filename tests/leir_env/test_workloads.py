"""Shipped workloads: found by name and URI, canonical, well-formed, and what PyTorch gives."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from envs.leir_env import workloads
from envs.leir_env.ir import DType
from envs.leir_env.key import key
from envs.leir_env.parser import ParseError, parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.verify import verify
from envs.leir_env.workloads import WorkloadError, load

TEXT = "i:3\nA:f32[i] -> B:f32[i]\nL_i B_i = 2*A_i\n"


@pytest.mark.parametrize("name", workloads.imported())
def test_a_shipped_file_is_canonical_and_well_formed(name):
    workload = load(name)
    path = workloads.SUITES / "basic" / f"{name}.leir"
    assert show(workload.program) == path.read_text()
    assert not verify(workload.program)


@pytest.mark.parametrize("name", workloads.names())
def test_a_uri_loads_the_workload_that_has_it(name):
    assert load(load(name).uri) == load(name)


def test_every_file_has_an_entry_and_every_entry_a_file():
    for suite in {suite for suite, _ in workloads.imported().values()}:
        files = {path.stem for path in (workloads.SUITES / suite).glob("*.leir")}
        assert files == set(workloads.names(suite))


def test_a_family_stands_for_its_first_size():
    assert load("matmul").name == "matmul_256"
    assert load("leir://basic/matmul?n=512").name == "matmul_512"


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("seed", range(6))
def test_a_pattern_is_canonical_and_well_formed_in_any_size_and_dtype(name, seed):
    text = PATTERNS[name].draw(np.random.default_rng(seed)) if seed else PATTERNS[name].text()
    program = parse(text)
    assert show(program) == text
    assert not verify(program)


def test_a_pattern_comes_in_the_size_that_its_uri_asks_for():
    program = load("leir://patterns/softmax_rows?n=7&dtype=f64").program
    assert [(tensor.shape, tensor.dtype) for tensor in program.inputs] == [((8, 7), DType.F64)]


def test_workloads_survive_pickling():
    assert pickle.loads(pickle.dumps(load("layernorm"))) == load("layernorm")


def test_text_files_and_programs_are_workloads(tmp_path):
    path = tmp_path / "twice.leir"
    path.write_text(TEXT)
    from_text = load(TEXT)
    assert from_text.uri == f"leir:{key(from_text.program)}"
    assert load(path).program == load(str(path)).program == load(from_text.program).program
    assert load(path).name == "twice"
    assert load(from_text) is from_text


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("sofmax", "did you mean softmax?"),
        ("xyzzy", "`leirgym list` shows all "),
        ("", "no workload ''"),
        ("leir://basic/matmul?n=700", "matmul is not shipped with ?n=700; it is with ?n=256 ?n=512 ?n=1024"),
        ("leir://basic/matmul?m=512", "not shipped with ?m=512"),
        ("leir://basics/matmul", "no suite basics; did you mean basic?"),
        ("leir://patterns/softmax_rows?q=3", "patterns/softmax_rows: there is no parameter q, but m, n, dtype"),
        ("leir://patterns/softmax_rows?n=0", "n is an integer from 1 to 65536, not 0"),
        ("leir://patterns/softmax_rows?n=1e9", "n is an integer from 1 to 65536, not 1e9"),
        ("leir://patterns/softmax_rows?dtype=i8", "dtype is one of f32, f64, f16, not i8"),
        ("leir://basic", "expected leir://suite/name"),
        ("https://basic/matmul", "expected leir://suite/name"),
        ("nowhere.leir", "no file nowhere.leir"),
        (3, "not a int"),
    ],
)
def test_what_is_no_workload_is_a_clear_error(what, expected):
    with pytest.raises(WorkloadError) as caught:
        load(what)
    assert expected in str(caught.value)


def test_malformed_text_is_a_located_error():
    with pytest.raises(ParseError, match="line 2"):
        load("i:3\nA:f32[i] -> B:f32[n]\nL_i B_i = A_i\n")


def test_a_file_that_is_no_text_or_too_long_is_an_error(tmp_path):
    binary, long = tmp_path / "binary.leir", tmp_path / "long.leir"
    binary.write_bytes(b"\xff\xfe\x00")
    long.write_text("x" * 10_000_000)
    with pytest.raises(WorkloadError, match="not UTF-8"):
        load(binary)
    with pytest.raises(WorkloadError, match="the limit is"):
        load(long)


def test_an_unknown_suite_is_an_error():
    with pytest.raises(WorkloadError, match="did you mean basic"):
        workloads.names("basik")


def test_loading_needs_neither_torch_nor_tvm():
    code = (
        "import sys; from envs.leir_env import workloads; [workloads.load(n) for n in workloads.names()]; "
        "assert not {'torch', 'tvm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_shipped_files_are_what_pytorch_gives():
    pytest.importorskip("torch")
    from datagen.workloads.cli import texts

    different = [name for _, name, text in texts() if show(load(name).program) != text]
    assert not different


def test_regeneration_writes_every_file_once(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from datagen.workloads import cli

    monkeypatch.setattr(cli, "texts", lambda: iter([("basic", "twice", TEXT)]))
    assert cli.regenerate(tmp_path) == ("twice",)
    assert (tmp_path / "basic" / "twice.leir").read_text() == TEXT
    assert cli.regenerate(tmp_path) == ()
