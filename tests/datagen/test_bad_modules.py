"""`leirgym optimize file.py:Class` on files that are no use: one line that says what, where and what to do."""

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import leirgym
from envs.common.console import Verbs

FILE = """
import torch
from torch import nn

class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

class Branch(nn.Module):
    def forward(self, x):
        return x if x.mean() > 0 else -x

class Loop(nn.Module):
    def forward(self, x):
        while x.sum() < 10:
            x = 2 * x
        return x

class Masked(nn.Module):
    def forward(self, x):
        return x[x > 0]

class Cut(nn.Module):
    def forward(self, x):
        return x[: int(x[0])]

class Factors(nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x).S

class Sorted(nn.Module):
    def forward(self, x):
        return x.sort().values

class Bytes(nn.Module):
    def forward(self, x):
        return x.to(torch.uint8)

class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)

class Mixed(nn.Module):
    def forward(self, x):
        return {"x": x, "count": 3}

def helper():
    pass
"""

ONE_PATH = "depends on the values of a tensor, but a program has one path: use torch.where, or fix the choice"


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("Missing", "f32[4]", "Missing is not defined in model.py; it has Sized, Linear, Branch"),
        ("helper", "f32[4]", "helper is not an nn.Module class in model.py"),
        ("Sized", "f32[4]", "Sized needs the constructor argument size: give defaults, or define get_init_inputs()"),
        ("Linear", "", "model.py has no get_inputs(); say the inputs, such as --inputs 'f32[16,64]'"),
        ("Linear", "f32[3,5]", "Linear fails on inputs f32[3,5]: mat1 and mat2 shapes cannot be multiplied"),
        ("Linear", "f32[3,5]", "at model.py:15: return self.linear(x)"),
        ("Linear", "f32[3,4] f32[3,4]", "takes 2 positional arguments but 3 were given"),
        ("Linear", "f32[n,4]", "expected inputs like 'f32[16,64] i64[16]', got 'f32[n,4]'"),
        ("Linear", "u8[3,4]", "got 'u8[3,4]'; dtypes are f16"),
        ("Branch", "f32[4]", f"{ONE_PATH} in the constructor, at model.py:19: return x if x.mean() > 0 else -x"),
        ("Loop", "f32[4]", f"{ONE_PATH} in the constructor, at model.py:23: while x.sum() < 10"),
        ("Masked", "f32[4]", f"{ONE_PATH} in the constructor, at model.py:29: return x[x > 0]"),
        ("Cut", "f32[4]", f"{ONE_PATH} in the constructor, at model.py:33: return x[: int(x[0])]"),
        ("Factors", "f32[3,3]", "operator aten._linalg_svd.default (node _linalg_svd) is not supported; write it out"),
        ("Factors", "f32[3,3]", "at model.py:37: return torch.linalg.svd(x).S"),
        ("Sorted", "f32[4]", "operator argsort: TVM has no loop form of this operator, at model.py:41"),
        ("Bytes", "f32[4]", "operator cast: LEIR has no dtype uint8, at model.py:45: return x.to(torch.uint8)"),
        ("Noise", "f32[4]", "draws random numbers, but a program is a function of its inputs, at model.py:49"),
        ("Mixed", "f32[4]", "Mixed returns int: a program returns tensors"),
    ],
)
def test_a_module_that_cannot_be_optimised_is_one_line(tmp_path, name, inputs, expected):
    path = tmp_path / "model.py"
    path.write_text(FILE)
    options = ["--inputs", inputs] if inputs else []
    result = CliRunner().invoke(Verbs(leirgym.VERBS), ["optimize", f"{path}:{name}", *options])
    assert result.exit_code == 2
    assert expected in result.output
    assert result.output.startswith("Error: ") and result.output.count("\n") == 1


def test_a_file_without_a_module_says_so(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("x = 1\n")
    result = CliRunner().invoke(Verbs(leirgym.VERBS), ["optimize", f"{path}:Model", "--inputs", "f32[4]"])
    assert result.exit_code == 2
    assert result.output.endswith("Model is not defined in model.py; it has none\n")
