"""Loading PyTorch modules that users name on the command line."""

from __future__ import annotations

import pytest

from agents.torch_modules import ModuleError, is_file, load, parse_inputs, race
from envs.common.evaluation import Timing
from envs.leir_env import workloads
from envs.leir_env.ir import DType
from envs.leir_env.parser import parse
from envs.leir_env.workloads import Reference

torch = pytest.importorskip("torch")

MODULE = """
import torch

class Scale(torch.nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor

class Broken(torch.nn.Module):
    def __init__(self):
        raise RuntimeError("out of luck")
"""
KERNELBENCH = "\ndef get_init_inputs():\n    return [3.0]\n\ndef get_inputs():\n    return [torch.ones(4)]\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODULE)
    return path


def test_a_file_and_class_is_told_from_other_workloads():
    assert is_file("models/attention.py:Attention")
    assert not any(map(is_file, ("softmax", "leir://basic/softmax", "a.leir", "a.py", "a.py:", "package.a:B")))


@pytest.mark.parametrize("text", ["f32[8,64] i64[8]", "f32[8,64],i64[8]", " f32[8, 64] , i64[8] "])
def test_inputs_are_read(text):
    assert parse_inputs(text) == ((DType.F32, (8, 64)), (DType.I64, (8,)))
    assert parse_inputs("f32[]") == ((DType.F32, ()),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f33[8]", "a dtype is one of f16, .*, not f33"),
        ("f32[8", r"written as f32\[8,64\] i64\[8\]; got 'f32\[8'"),
        ("f32[8] 12", "got '12'"),
    ],
)
def test_inputs_that_are_none_say_how_to_write_them(text, message):
    with pytest.raises(ModuleError, match=message):
        parse_inputs(text)


def test_a_module_is_loaded_with_drawn_inputs(file):
    module, (x,) = load(Reference(f"{file}:Scale", (), "f32[3,5]"))
    assert module.factor == 2.0 and not module.training
    assert tuple(x.shape) == (3, 5) and x.dtype is torch.float32
    assert torch.equal(x, load(Reference(f"{file}:Scale", (), "f32[3,5]"))[1][0])


def test_the_convention_of_kernelbench_is_understood(file):
    file.write_text(MODULE + KERNELBENCH)
    module, (x,) = load(Reference(f"{file}:Scale", (), ""))
    assert module.factor == 3.0 and torch.equal(x, torch.ones(4))


def test_shipped_references_load():
    reference = workloads.load("linear_relu").reference
    assert reference is not None
    module, examples = load(reference)
    assert module(*examples).shape == (128, 256)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("Absent", "f32[3]", "model.py defines no Absent"),
        ("Scale", "", r"has no get_inputs\(\); give --inputs"),
        ("Broken", "f32[3]", "RuntimeError: out of luck"),
    ],
)
def test_a_module_that_cannot_be_loaded_says_why(file, name, inputs, message):
    with pytest.raises(ModuleError, match=message):
        load(Reference(f"{file}:{name}", (), inputs))


def test_a_missing_file_and_a_file_with_an_error_are_named(tmp_path):
    with pytest.raises(ModuleError, match=r"there is no file .*none\.py"):
        load(Reference(f"{tmp_path}/none.py:A", (), "f32[3]"))
    (tmp_path / "bad.py").write_text("def broken(:")
    with pytest.raises(ModuleError, match=r"bad.py:A: SyntaxError"):
        load(Reference(f"{tmp_path}/bad.py:A", (), "f32[3]"))


def test_a_race_times_both_and_names_torch(file):
    program = parse("i:64\nA:f32[i] -> B:f32[i]\nL_i B_i = A_i*2.0\n")
    timed = race(program, Reference(f"{file}:Scale", (), "f32[64]"), threads=1)
    assert isinstance(timed, Timing), timed
    assert timed.low <= timed.ratio <= timed.high
    assert timed.baseline_name == f"torch {torch.__version__} eager, 1 thread"


def test_a_race_that_fails_says_why_instead_of_a_figure(file):
    program = parse("i:64\nA:f32[i] -> B:f32[i]\nL_i B_i = A_i*2.0\n")
    assert "out of luck" in str(race(program, Reference(f"{file}:Broken", (), "f32[64]"), threads=1))
