"""Spaces by name: those that ship, those in a folder of yours, and files; and how they split.

A name is `application/device`, as in `convolution/H200`; an application alone stands for all its devices.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Sequence
from pathlib import Path

from envs.autotune_env import compact, readers
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.space import Space
from envs.autotune_env.synthetic import DEVICES, synthetic

SHIPPED = Path(__file__).parent / "spaces"
"""The spaces that ship: `application/device.npz`."""

PARTS = ("train", "test")

HELD_OUT: dict[str, frozenset[str]] = {
    "device": frozenset({"H200", "MI250X", "RTX3090", "A6000", "W6600", "W7800"}),
    "application": frozenset({"gemm", "hotspot", "pnpoly"}),
}
"""What is tested on, by the part of the name that a split goes by; all others are trained on.

Of the spaces that ship and the public ones, A100 and A4000 (GPUs of one maker and generation) and EPYC (a CPU) are
trained on. Held out are a later generation of that maker (H200), another maker (MI250X), and a consumer's card with an
application that training never sees (RTX3090, pnpoly). The last three devices are those that the literature on
generated optimisers holds out.
"""

FORMATS = frozenset({"T1", "T4"})
"""What stands for the device in the names of files that describe a kernel, or hold results in another form."""

SYNTHETIC = "synthetic"
"""Applications whose name begins so are made, not read: `synthetic7/north` is seed 7."""

Source = str | Path | Space


def names(folder: Path | None = None, application: str = "") -> list[str]:
    """The spaces in a folder (by default, those that ship), of one application or of all."""
    root = folder or SHIPPED
    found = (path.relative_to(root).with_suffix("").as_posix() for path in root.glob(f"*/*{compact.SUFFIX}"))
    return sorted(name for name in found if application in ("", name.partition("/")[0]))


def split(found: Sequence[str], part: str, by: str = "device") -> list[str]:
    """Those names that a split `by` device or application puts into `part`. Raises ValueError for other words."""
    if part not in PARTS:
        raise ValueError(f"split is one of {', '.join(PARTS)}, not {part!r}")
    if by not in HELD_OUT:
        raise ValueError(f"a split goes by {' or '.join(HELD_OUT)}, not by {by!r}")
    place = list(HELD_OUT).index(by)
    held = HELD_OUT[by]
    return [name for name in found if (name.split("/")[1 - place] in held) == (part == "test")]


def load(source: Source, folder: Path | None = None, samples: bool = True) -> Space:
    """One space: a name, a file (`.npz`, a Kernel Tuner cache or a T4 file, `.gz` of either), or a `Space` itself.

    Without `samples` a compact file loads faster. Raises `SpaceError` that lists what there is.
    """
    if isinstance(source, Space):
        return source
    path = Path(source)
    if path.suffix not in (compact.SUFFIX, ".json", ".gz"):
        if str(source).startswith(SYNTHETIC):
            return _made(str(source))
        path = (folder or SHIPPED) / f"{source}{compact.SUFFIX}"
        if not path.is_file():
            raise SpaceError(_unknown(str(source), folder))
        return _read(path, path.stat().st_mtime_ns, samples, str(source))
    try:
        return _read(path, path.stat().st_mtime_ns, samples)
    except OSError as error:
        raise SpaceError(f"{path}: {error.strerror or error}") from None


def resolve(
    source: Source | Sequence[Source] | None,
    part: str | None = None,
    folder: Path | None = None,
    samples: bool = True,
    by: str = "device",
) -> tuple[Space, ...]:
    """All spaces that an environment's arguments name; `part` keeps those on one side of the split `by`.

    An application stands for all its devices, and a folder for the recordings in it. Raises `SpaceError` where there
    is none, or none is left.
    """
    listed = [source] if isinstance(source, str | Path | Space) else list(source or ())
    if not listed:
        raise SpaceError(f"space= names a tuning space: {_available(folder)}")
    sources: list[Source] = []
    for item in listed:
        devices = names(folder, item) if isinstance(item, str) and "/" not in item else []
        sources += devices or ([item] if isinstance(item, Space) or not Path(item).is_dir() else _within(Path(item)))
    spaces = [load(item, folder, samples) for item in sources]
    kept = [space.name for space in spaces] if part is None else split([space.name for space in spaces], part, by)
    if not kept:
        raise SpaceError(f"none of {', '.join(space.name for space in spaces)} is in split {part!r}")
    return tuple(space for space in spaces if space.name in kept)


def _within(folder: Path) -> list[Space]:
    """The spaces in a folder: compact files `application/device.npz`, and caches `application_device.json`, or .gz.

    The name of the file is that of the space.
    """
    caches = {path: path.name.partition(".")[0].split("_") for path in folder.glob("*.json*")}
    named = {path: "/".join(parts) for path, parts in caches.items() if len(parts) == 2 and parts[1] not in FORMATS}
    named |= {path: f"{path.parent.name}/{path.stem}" for path in folder.glob(f"*/*{compact.SUFFIX}")}
    if not named:
        raise SpaceError(f"{folder}: no application_device.json, .json.gz or application/device{compact.SUFFIX} in it")
    return [_read(path, path.stat().st_mtime_ns, False, name) for path, name in sorted(named.items())]


@functools.lru_cache(maxsize=64)
def _read(path: Path, modified: int, samples: bool, name: str = "") -> Space:
    """Read a file, once for each version of it; in a folder, a space is called what its file is called."""
    space = compact.load(path, samples) if path.suffix == compact.SUFFIX else readers.read(path)
    return dataclasses.replace(space, name=name) if name not in ("", space.name) else space


@functools.lru_cache(maxsize=64)
def _made(name: str) -> Space:
    seed, _, device = name.removeprefix(SYNTHETIC).partition("/")
    if not seed.isdecimal() or device not in DEVICES:
        example = f"{SYNTHETIC}0/{min(DEVICES)}"
        raise SpaceError(f"a synthetic space is named as {example}, on {', '.join(DEVICES)}, not {name!r}")
    return synthetic(device, int(seed))


def _available(folder: Path | None) -> str:
    found = names(folder)
    made = f"{SYNTHETIC}<seed>/<{'|'.join(DEVICES)}> is made on the spot"
    files = "a path to a .npz, a Kernel Tuner cache or a T4 file is read"
    nothing = "none ships" if folder is None else f"none is in {folder}"
    return f"{', '.join(found) or nothing}; {made}; {files}"


def _unknown(name: str, folder: Path | None) -> str:
    close = difflib.get_close_matches(name, names(folder), 1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"no space is called {name!r}; {hint}there are: {_available(folder)}"
