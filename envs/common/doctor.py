"""What a report of a problem needs: versions, tools, devices, the store, and where our packages come from."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from envs.common.console import Answer, Exit, columns, verb
from envs.common.settings import settings
from envs.common.store import Store, StoreError

PACKAGES = ("envs", "agents", "datagen", "training", "leirgym")
"""Our top-level names. All but the last are common words, which another distribution may use too."""

DISTRIBUTIONS = (
    "leirgym",
    "gymnasium",
    "numpy",
    "apache-tvm",
    "apache-tvm-ffi",
    "islpy",
    "lark",
    "sympy",
    "rich",
    "click",
    "torch",
)
TOOLS = ("nvcc", "ptxas", "g++")

_ASK_TVM = """
import json, sys
sys.modules["torch"] = None
import tvm
from tvm.target import codegen
print(json.dumps({"llvm": codegen.llvm_version_major(), "llvm host cpu": codegen.llvm_get_system_cpu(),
                  "tvm's own threads": tvm.runtime.num_threads()}))
"""


@verb("doctor")
def doctor() -> Answer:
    """Print versions, tools, devices, the store, and the file that each top-level package comes from."""
    sections: dict[str, dict[str, str]] = {
        "versions": versions(),
        "compiler": compiler(),
        "tools": tools(),
        "devices": devices(),
        "store": store(settings().store),
        "packages": {name: str(origin(name)) for name in PACKAGES},
    }
    warnings = shadows({name: origin(name) for name in PACKAGES}, providers())
    lines = []
    for title, facts in sections.items():
        lines += [title, columns([(f"  {name}", value) for name, value in facts.items()])]
    lines += [f"warning: {warning}" for warning in warnings]
    code = Exit.NEGATIVE if warnings else Exit.OK
    return Answer("\n".join(lines), {**sections, "warnings": warnings}, code)


def versions() -> dict[str, str]:
    """The version of Python and of each distribution that matters; torch is optional."""
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions() if d.metadata["Name"]}
    found = {name: installed.get(name, "not installed") for name in DISTRIBUTIONS}
    return {"python": f"{platform.python_version()} ({sys.executable})", **found}


def compiler() -> dict[str, str]:
    """What TVM says about this machine, asked in a process of its own: a broken TVM must not end the report."""
    child = subprocess.run([sys.executable, "-c", _ASK_TVM], capture_output=True, text=True, timeout=120)
    if child.returncode:
        return {"tvm": f"fails to load: {' '.join(child.stderr.strip().splitlines()[-1:])}"}
    facts: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    threads = {"threads of a measured kernel": settings().threads, "workers": settings().workers}
    return {name: str(value) for name, value in {**facts, **threads}.items()}


def tools() -> dict[str, str]:
    """Where the compilers of C++ and CUDA are."""
    return {name: shutil.which(name, path=_search_path()) or "not found" for name in TOOLS}


def _search_path() -> str:
    """The path, and the folders where the wheels of CUDA's tools put them."""
    wheels = sorted({str(tool.parent) for place in sys.path for tool in Path(place).glob("nvidia/*/bin/ptxas")})
    return os.pathsep.join([*os.get_exec_path(), *wheels])


def devices() -> dict[str, str]:
    """The processor, and the GPUs that the driver lists."""
    cores = len(os.sched_getaffinity(0))
    found = {"cpu": f"{_processor()}, {cores} of {os.cpu_count()} logical cores"}
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return {**found, "gpu": "none (no nvidia-smi)"}
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=30)
    lines = (listed.stdout if listed.returncode == 0 else listed.stderr).strip().splitlines()
    return {**found, **{f"gpu {n}": line for n, line in enumerate(lines)}}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def store(path: Path) -> dict[str, str]:
    """Where measurements are kept, and how many."""
    if not path.exists():
        return {"path": str(path), "size": "not there yet"}
    try:
        opened = Store(path)
        count = f"{len(opened):,}"
        opened.close()
    except StoreError as error:
        count = f"unreadable: {error}"
    return {"path": str(path), "size": f"{path.stat().st_size / 1e6:.1f} MB", "evaluations": count}


def origin(name: str) -> Path | None:
    """The file that `import name` would load."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin) if spec and spec.origin else None


def providers() -> Mapping[str, Iterable[str]]:
    """The distributions that install each top-level name."""
    return metadata.packages_distributions()


def shadows(origins: Mapping[str, Path | None], providers: Mapping[str, Iterable[str]]) -> list[str]:
    """Name each top-level package that isn't beside `leirgym.py`, or that another distribution has too."""
    ours = origins["leirgym"]
    warnings = []
    for name, place in origins.items():
        others = sorted({other for other in providers.get(name, ()) if other.lower() != "leirgym"})
        by = f"; {', '.join(others)} installs that name too" if others else ""
        folder = place.parent if name == "leirgym" and place else place and place.parent.parent
        if place is None or ours is None:
            warnings.append(f"package {name} can't be found{by}")
        elif folder != ours.parent:
            warnings.append(f"package {name} comes from {place}, not from {ours.parent}{by}")
        elif others:
            warnings.append(f"package {name} is ours here{by}: the order of installation decides")
    return warnings
