"""Shipped workloads: found by name and URI, canonical, well-formed, and what PyTorch gives."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from envs.leir_env import workloads
from envs.leir_env.generate import random_program
from envs.leir_env.ir import DType
from envs.leir_env.key import key
from envs.leir_env.parser import ParseError, parse
from envs.leir_env.patterns import PATTERNS
from envs.leir_env.printer import show
from envs.leir_env.suite_tables import entries, tables
from envs.leir_env.verify import verify
from envs.leir_env.workloads import WorkloadError, load

TEXT = "i:3\nA:f32[i] -> B:f32[i]\nL_i B[i] = 2*A[i]\n"


@pytest.mark.parametrize("name", workloads.imported())
def test_a_shipped_file_is_canonical_and_well_formed(name):
    workload = load(name)
    assert show(workload.program) == workloads.imported()[name].path.read_text()
    assert not verify(workload.program)


@pytest.mark.parametrize("name", workloads.names())
def test_a_uri_loads_the_workload_that_has_it(name):
    assert load(load(name).uri) == load(name)


def test_a_name_stands_for_the_first_suite_that_has_it_and_a_uri_for_its_own():
    assert load("softmax").uri.startswith("leir://basic/softmax?")
    assert load("single/softmax") == load("leir://single/softmax")
    assert load("single/softmax").program.inputs[0].shape == (16, 16384)
    assert {"softmax", "single/softmax", "relu"} <= set(workloads.names())
    assert "single/softmax" in workloads.names("single")


def test_every_shipped_name_is_listed_once():
    suites = [workloads.names(suite) for suite in workloads.suites()]
    assert sum(map(len, suites)) == len(set().union(*suites)) == len(workloads.names())


def test_what_ships_in_f32_comes_in_f16_and_f64_too():
    half, double = (load(f"single/softmax?dtype={dtype}").program for dtype in ("f16", "f64"))
    assert {tensor.dtype for tensor in double.tensors} == {DType.F64}
    assert not verify(half) and not verify(double)


def test_a_half_precision_sum_is_kept_in_single_precision():
    assert show(load("leir://basic/sum?dtype=f16").program) == (
        "i,j:1024\nA:f16[i,j] -> B:f16[i]; C:f32[i]\nL_i,j C[i] += f32(A[i,j])\nL_i B[i] = f16(C[i])\n"
    )


def test_a_size_by_name_is_the_one_of_the_table():
    assert load("single/relu?size=default") == load("relu")
    assert load("single/relu?m=16&n=16384&dtype=f32") == load("relu")


def test_a_random_program_comes_by_its_seed():
    assert load("leir://fuzz/17") == load("fuzz/17") == load("leir://fuzz/017")
    assert load("fuzz/17").program == random_program(np.random.default_rng(17))
    assert load("fuzz/17").program != load("fuzz/18").program


def test_a_family_is_wholly_in_training_or_in_test():
    loaded = [load(name) for name in workloads.names()]
    families = {split: {w.family for w in loaded if w.split == split} for split in ("train", "test")}
    assert not families["train"] & families["test"]
    assert families["test"] == workloads.TEST_FAMILIES
    assert 0.15 < sum(w.split == "test" for w in loaded) / len(loaded) < 0.3


def test_no_program_is_both_in_training_and_in_test():
    keys = {
        split: {key(w.program) for w in map(load, workloads.names()) if w.split == split} for split in ("train", "test")
    }
    assert not keys["train"] & keys["test"]


def test_operations_and_bytes_are_those_of_the_program():
    matmul = load("matmul_256")
    assert (matmul.flops, matmul.bytes) == (2 * 256**3, 3 * 4 * 256**2)


def test_every_file_has_an_entry_and_every_entry_a_file():
    for suite in tables():
        files = {path.stem for path in (workloads.SUITES / suite).glob("*.leir")}
        assert files == {entry.name for entry in entries(suite)}


def test_a_family_stands_for_its_first_size():
    assert load("matmul").name == "matmul_256"
    assert load("leir://basic/matmul?n=512").name == "matmul_512"


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("seed", range(6))
def test_a_pattern_is_well_formed_in_any_size_and_dtype(name, seed):
    text = PATTERNS[name].draw(np.random.default_rng(seed)) if seed else PATTERNS[name].text()
    program = parse(text)
    assert parse(show(program)) == program
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
        ("leir://single/softmx", "no workload 'softmx' in suite single; did you mean softmax?"),
        ("leir://single/softmax?k=3", "single/softmax: there is no parameter k, but m, n, size, dtype"),
        ("leir://single/softmax?n=-3", "n is an integer from 1 to 1048576, not -3"),
        ("leir://single/softmax?size=huge", "size is one of small, default, large, not huge"),
        ("leir://single/softmax?dtype=i8", "dtype is one of f32, f64, f16, not i8"),
        ("single/matmul_4d?dtype=f64", "all tensors take 3,221,487,616 bytes; the limit is 2,147,483,648"),
        ("leir://fuzz/x", "expected leir://fuzz/SEED with a natural number"),
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
        load("i:3\nA:f32[i] -> B:f32[n]\nL_i B[i] = A[i]\n")


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


def test_another_size_is_imported_from_pytorch():
    pytest.importorskip("torch")
    workload = load("leir://single/softmax?m=5&n=9&dtype=f64")
    assert workload.name == "single/softmax?m=5&n=9&dtype=f64"
    assert [(tensor.dtype, tensor.shape) for tensor in workload.program.inputs] == [(DType.F64, (5, 9))]
    assert load(workload.uri) is workload
    assert workload.reference.inputs == "f64[5,9]"


def test_a_size_that_pytorch_refuses_is_a_clear_error():
    pytest.importorskip("torch")
    with pytest.raises(WorkloadError, match=r"imported from PyTorch: num_channels .6. must be divisible by"):
        load("single/group_norm?c=6&groups=4")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("composite/gqa?heads=3&groups=2", "imported from PyTorch: "),
        ("single/conv1d?l=1", "imported from PyTorch: torch.export refuses the module: "),
        ("single/relu?m=1048576&n=1048576", "input f32[1048576,1048576] has 4,398,046,511,104 bytes"),
    ],
)
def test_a_size_that_cannot_be_is_one_line(what, expected):
    pytest.importorskip("torch")
    with pytest.raises(WorkloadError) as caught:
        load(what)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_another_size_without_pytorch_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from envs.leir_env.workloads import load\n"
        "load('single/softmax'); load('single/softmax?dtype=f16'); load('single/softmax?n=8')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr.splitlines()[-1].endswith(
        "single/softmax?m=16&n=8 does not ship and is imported from PyTorch: "
        "PyTorch is not installed: pip install 'leirgym[torch]'"
    )
