"""The compact form in which spaces ship: a `.npz` of plain arrays and a JSON header, readable without pickle.

`read(write(space))` is the space; the same space always makes the same bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import Domain, Parameter, SpaceError
from envs.autotune_env.space import Space

FORMAT = "leirgym-space-1"

SUFFIX = ".npz"

_HEADER: dict[str, type] = {
    "name": str,
    "kernel": str,
    "device": str,
    "objective": str,
    "unit": str,
    "higher_is_better": bool,
    "problem_size": str,
    "source": dict,
}
"""Fields of a space that stand in the header as they are."""


def dump(space: Space, samples: int | None = None) -> bytes:
    """The bytes of a space, with at most so many samples of each configuration.

    Without samples (0), a file is about a fifth as large, and its noise can't be resampled.
    """
    domain = space.domain
    header = {
        "format": FORMAT,
        **{name: getattr(space, name) for name in _HEADER},
        "source": dict(space.source),
        "parameters": {parameter.name: list(parameter.values) for parameter in domain.parameters},
        "constants": dict(domain.constants),
        "order": list(domain.order),
        "restrictions": list(domain.restrictions),
    }
    small = max(domain.sizes) <= 256
    arrays: dict[str, npt.NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        "configurations": domain.configurations.astype(np.uint8 if small else np.uint16),
        "status": space.status,
        "values": space.values,
        "costs": space.costs,
    }
    if space.samples is not None and samples != 0:
        arrays["samples"] = space.samples if samples is None else thin(space.samples, samples)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def thin(samples: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """At most `count` of the samples (N, R) of each row: evenly spaced ones in their order, from least to greatest."""
    if count >= samples.shape[1]:
        return samples
    ordered = np.sort(samples, axis=1)  # NaN last
    known = np.count_nonzero(~np.isnan(ordered), axis=1)
    places = np.round(np.linspace(0, 1, count) * np.maximum(known - 1, 0)[:, None]).astype(np.int64)
    return np.take_along_axis(ordered, places, axis=1)


def load(path: Path, samples: bool = True) -> Space:
    """Read a compact file; without `samples`, faster. Raises `SpaceError` naming the file and what is wrong with it."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise SpaceError(f"the header is of format {FORMAT}")
            wanted = ["configurations", "status", "values", "costs"]
            wanted += ["samples"] if samples and "samples" in archive else []
            arrays = {name: archive[name] for name in wanted}
        return _space(header, arrays)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SpaceError(f"{path}: a compact space is a .npz file; this one is cut or damaged: {error}") from None
    except KeyError as error:
        raise SpaceError(f"{path}: {error.args[0]} is missing") from None
    except (TypeError, AttributeError) as error:
        raise SpaceError(f"{path}: the header does not have the form of {FORMAT}: {error}") from None
    except ValueError as error:
        raise SpaceError(f"{path}: {error}") from None


def _space(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Space:
    for name, kind in _HEADER.items():
        if not isinstance(header[name], kind):
            raise SpaceError(f"{name} is of type {type(header[name]).__name__}, not {kind.__name__}")
    domain = Domain(
        tuple(Parameter(name, tuple(values)) for name, values in header["parameters"].items()),
        arrays["configurations"].astype(np.uint16),
        header["constants"],
        tuple(header["order"]),
        tuple(header["restrictions"]),
    )
    return Space(
        domain=domain,
        status=arrays["status"],
        values=arrays["values"],
        costs=arrays["costs"],
        samples=arrays.get("samples"),
        **{name: header[name] for name in _HEADER},
    )
