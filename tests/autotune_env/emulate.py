"""Run a CUDA kernel of ours on the CPU, thread by thread, with memory that ends at a guard page."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_name("emulate.h")

TYPES = {np.dtype(np.float32): "float", np.dtype(np.uint8): "unsigned char"}

NO_ACCESS = 0

LIBC = ctypes.CDLL(None)


def guarded(array: np.ndarray, at_end: bool) -> tuple[np.ndarray, object]:
    """A copy of an array whose last byte (or first) borders on memory that nobody may touch; and its keeper."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (base, base + page + room):
        assert LIBC.mprotect(ctypes.c_void_p(guard), page, NO_ACCESS) == 0
    start = page + (room - array.nbytes if at_end else 0)
    copy = np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape)
    copy[...] = array
    return copy, memory


def emulate(kernel, configuration, folder: Path, descending: bool) -> np.ndarray:
    """The output of a run; dies of a signal where the kernel leaves its arrays."""
    arrays = kernel.inputs(kernel.constants)
    passed = [name for name in arrays if name != kernel.constant_memory]
    fresh = Path(tempfile.mkdtemp(dir=folder))  # a library that is loaded again under its name is the old one
    source, library = fresh / "emulated.cpp", fresh / "emulated.so"
    declared = "".join(f"static const {TYPES[arrays[name].dtype]}* argument_{name};\n" for name in passed)
    assigned = "".join(
        f"    argument_{name} = (decltype(argument_{name}))inputs[{i}];\n" for i, name in enumerate(passed)
    )
    constant = kernel.constant_memory
    copied = f"    memcpy({constant}, inputs[{len(passed)}], sizeof {constant});\n" if constant else ""
    call = ", ".join(["argument_output", *(f"argument_{name}" for name in passed)])
    source.write_text(
        f'#include "{HEADER}"\n{kernel.text(configuration)}\nstatic float* argument_output;\n{declared}'
        f"static void thread() {{ {kernel.application}({call}); }}\n"
        'extern "C" int run(int gx, int gy, int bx, int by, int descending, float* output, void** inputs) {\n'
        f"    argument_output = output;\n{assigned}{copied}"
        "    return launch(thread, gx, gy, bx, by, descending);\n}\n"
    )
    flags = ["-O1", "-w", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error", "-ffp-contract=off"]
    subprocess.run(["g++", *flags, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    output, keeper = guarded(kernel.output(), not descending)
    copies = [guarded(arrays[name], not descending) for name in (*passed, *([constant] if constant else []))]
    pointers = (ctypes.c_void_p * len(copies))(*(copy.ctypes.data for copy, _ in copies))
    run = ctypes.CDLL(str(library)).run
    run.argtypes = [ctypes.c_int] * 5 + [ctypes.c_void_p] * 2
    shape = (*kernel.geometry.grid(configuration), *kernel.geometry.block(configuration))
    assert run(*shape, descending, output.ctypes.data, ctypes.addressof(pointers)) == 0, "threads missed a barrier"
    assert keeper
    return output.copy()
