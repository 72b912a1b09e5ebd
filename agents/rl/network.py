"""A trained policy as data: a small network in NumPy, what it was trained on, and one file that holds both.

A file holds numbers and a line of JSON, nothing that runs when it is read; neither torch nor a trainer is needed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Layer = tuple[Floats, Floats]
"""Weights (inputs, outputs) and biases (outputs)."""

FORMAT = 1


class PolicyError(ValueError):
    """A file that is no policy, or a policy that does not fit what it is to act on."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Layers with tanh between them, from an observation to one logit for each choice.

    `sizes` are the numbers of choices: one of them for a menu, one for each parameter where several are chosen at
    once. The logits of all stand one after the other.
    """

    layers: tuple[Layer, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        widths = [(weights.shape, biases.shape) for weights, biases in self.layers]
        for (given, _), (expected, _) in zip(widths[1:], widths, strict=False):
            if given[0] != expected[1]:
                raise PolicyError(f"a layer of {expected[1]} outputs meets one of {given[0]} inputs")
        if any(shape[1:] != biases for shape, biases in widths):
            raise PolicyError("a layer has as many biases as outputs")
        if not widths or widths[-1][0][1] != sum(self.sizes):
            raise PolicyError(f"the last layer has one output for each of {sum(self.sizes)} choices")

    @property
    def inputs(self) -> int:
        """Numbers in an observation."""
        return int(self.layers[0][0].shape[0])

    def logits(self, observation: Floats, among: npt.NDArray[np.intp] | None = None) -> Floats:
        """The logits of all choices, or of those `among` them."""
        *hidden, (weights, biases) = self.layers
        signal: npt.NDArray[Any] = observation
        for inner, shift in hidden:
            signal = np.tanh(signal @ inner + shift)
        if among is not None:
            weights, biases = weights[:, among], biases[among]
        return np.asarray(signal @ weights + biases, np.float32)

    def choose(
        self, observation: Floats, mask: npt.NDArray[np.bool_], rng: np.random.Generator | None
    ) -> tuple[int, ...]:
        """One legal choice for each of `sizes`: drawn with `rng`, or the likeliest without."""
        chosen = []
        start = 0
        for size in self.sizes:
            legal = np.flatnonzero(mask[start : start + size])
            logits: npt.NDArray[Any] = self.logits(observation, legal + start)
            if rng is not None:
                logits = logits + rng.gumbel(size=len(logits))
            chosen.append(int(legal[int(np.argmax(logits))]))
            start += size
        return tuple(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """A network and what it was trained on."""

    network: Network
    environment: str
    """Id of the environment, as `LEIR-v0`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """That the environment was made with."""
    blocks: Mapping[str, int] = field(default_factory=dict)
    """The menu's block sizes by strategy, where there is a menu: the meaning of the choices."""

    def save(self, path: Path) -> None:
        """Write the file."""
        about = {
            "format": FORMAT,
            "environment": self.environment,
            "arguments": dict(self.arguments),
            "blocks": list(self.blocks.items()),
            "sizes": self.network.sizes,
        }
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
        for n, (weights, biases) in enumerate(self.network.layers):
            arrays |= {f"w{n}": weights, f"b{n}": biases}
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)


def load(path: str | Path) -> Policy:
    """Read a policy. Raises `PolicyError` that names the file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(str(file["about"]))
            count = sum(name.startswith("w") for name in file.files)
            layers = tuple((file[f"w{n}"], file[f"b{n}"]) for n in range(count))
        if about["format"] != FORMAT:
            raise PolicyError(f"format {about['format']}; this program reads format {FORMAT}")
        network = Network(layers, tuple(about["sizes"]))
        return Policy(network, about["environment"], about["arguments"], dict(about["blocks"]))
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise PolicyError(f"{path} is no trained policy: {error}") from error


def squash(values: npt.ArrayLike) -> Floats:
    """Numbers of any size, brought to a few units: the logarithm of 1 + |x|, with the sign of x."""
    given = np.asarray(values, np.float32)
    return np.asarray(np.sign(given) * np.log1p(np.abs(given)), np.float32)
