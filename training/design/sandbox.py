"""Programs at work, behind fences: a disposable process with limits of time, memory and calls, and an audit hook.

Whatever a program does, the study goes on: what comes back is a `Measured`, or a `Failed` with the reason. The process
may neither open a file for writing, nor one that is no part of Python, nor a socket, nor start a process; a program
that tries fails, even if it catches the error.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import pickle
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import NOWHERE, Domain
from envs.autotune_env.optimizers.search import Driver, Searcher
from envs.autotune_env.oracle import Outcome as Observation
from envs.autotune_env.score import MARGIN, Scale, scale, step_curve
from envs.autotune_env.simulate import simulate
from envs.autotune_env.space import Space
from envs.common.moves import shorten
from envs.common.workers import Crashed, Outcome, OutOfMemory, Pool, Raised, Returned, TimedOut
from training.design.program import check, load

Curves = npt.NDArray[np.float32]
"""(R, K): the best so far by rank, of R runs, at K points of the range."""

STRIDE = 10
"""Every how many points of a scale a curve is kept."""

MEMORY = 512 * 2**20
"""Bytes beyond what the process has mapped."""

SECONDS = 2.0
"""Wall time of a run, on average over the runs of a call."""

FREE = 200
"""Choices in a run that may come to nothing before they are counted against the evaluations."""

SHARE = 0.5
"""What part of the choices after those may be illegal, or stand in for a search that repeats itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program did on each space: curves of its runs."""

    curves: dict[str, Curves]
    seconds: float
    """CPU time."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a program was not measured, as `code: sentence`."""

    reason: str


class Misbehaved(RuntimeError):
    """A program broke a rule while it ran."""


@dataclass(frozen=True, slots=True)
class Watched:
    """An optimiser whose runs end with `Misbehaved` where too many choices come to nothing."""

    inner: Searcher

    def start(self, domain: Domain, rng: np.random.Generator) -> Watch:
        """Begin a run."""
        return Watch(self.inner.start(domain, rng))


@dataclass(slots=True)
class Watch:
    """A run that is watched."""

    driver: Driver
    asked: int = 0
    idle: dict[str, int] = field(default_factory=lambda: {"illegal": 0, "revisits": 0})

    def ask(self) -> int:
        row = self.driver.ask()
        self.asked += 1
        try:
            row = operator.index(row)
        except TypeError:
            raise Misbehaved(f"contract: a search yields rows, not {shorten(repr(row), 80)}") from None
        if not NOWHERE <= row < self.driver.view.size:
            raise Misbehaved(f"contract: rows run from 0 to {self.driver.view.size - 1}, and not to {row}")
        self.idle["illegal"] += row == NOWHERE
        self.idle["revisits"] += self.driver.bored
        for what, count in self.idle.items():
            if count > FREE and count > SHARE * self.asked:
                raise Misbehaved(f"{what}: {count:,} of {self.asked:,} choices in a run")
        return row

    def tell(self, row: int, outcome: Observation, spent: float) -> None:
        """Pass it on."""
        self.driver.tell(row, outcome, spent)


class Sandbox:
    """Runs programs on spaces, one at a time, in processes that are replaced whenever they can no longer be trusted.

    `seconds` limits the wall time of one run on one space, on average over the runs of a call. The runs of a program
    are shared out among `workers` processes, which makes no difference to what comes back.
    """

    def __init__(
        self, spaces: Sequence[Space], seconds: float = SECONDS, memory: int = MEMORY, workers: int = 1
    ) -> None:
        self.spaces = tuple(spaces)
        self.scales = {space.name: scale(space) for space in spaces}
        self._seconds, self._memory = seconds, memory
        self._content = pickle.dumps(self.spaces, protocol=5)
        self._pool = Pool(workers, "training.design.sandbox", recycle=20)

    def run(self, source: str, begin: int, end: int, seed: int = 0) -> Measured | Failed:
        """The runs numbered `begin` to `end` of a program on each space; equal numbers have equal seeds."""
        problem = check(source)
        if problem is not None:
            return Failed(problem)
        count = len(self._pool.workers)
        cuts = sorted({begin + (end - begin) * part // count for part in range(count + 1)})
        jobs = [(source, self._content, first, last, seed) for first, last in itertools.pairwise(cuts)]
        timeout = 2.0 + self._seconds * -(-(end - begin) // count) * len(self.spaces)
        parts: dict[int, Measured] = {}
        with contextlib.closing(
            self._pool.map("training.design.sandbox:work", jobs, timeout=timeout, memory=self._memory)
        ) as outcomes:
            for place, outcome, _ in outcomes:
                part = _measured(outcome)
                if isinstance(part, Failed):
                    return part
                parts[place] = part
        ordered = [part for _, part in sorted(parts.items())]
        curves = {space.name: np.concatenate([part.curves[space.name] for part in ordered]) for space in self.spaces}
        return Measured(curves, sum(part.seconds for part in ordered))

    def close(self) -> None:
        """End the processes."""
        self._pool.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _measured(outcome: Outcome) -> Measured | Failed:
    """What a call of `work` came to."""
    match outcome:
        case Returned(value):
            return Measured(value[0], value[1])
        case Raised("Misbehaved", message):
            return Failed(shorten(message, 300))
        case Raised(kind, message):
            return Failed(f"raised: {kind}: {shorten(message, 300)}")
        case TimedOut(limit):
            return Failed(f"timeout: still running after {limit:.0f} seconds")
        case OutOfMemory(limit):
            return Failed(f"memory: wanted more than {limit / 2**20:.0f} MiB")
        case Crashed() as crash:
            return Failed(f"crashed: {crash}")


def work(source: str, content: bytes, begin: int, end: int, seed: int) -> tuple[dict[str, Curves], float]:
    """Run a program on pickled spaces; called in the worker."""
    scales = [scale(space) for space in _spaces(content)]
    started = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with fenced():
        optimizer = Watched(load(source))
        curves = {one.space.name: runs(optimizer, one, begin, end, seed) for one in scales}
    return curves, resource.getrusage(resource.RUSAGE_SELF).ru_utime - started


@functools.lru_cache(maxsize=2)
def _spaces(content: bytes) -> tuple[Space, ...]:
    """The spaces, unpickled once in each process, so that what is computed from them is kept as well."""
    spaces: tuple[Space, ...] = pickle.loads(content)
    return spaces


def runs(optimizer: Any, one: Scale, begin: int, end: int, seed: int) -> Curves:
    """The curves of the runs numbered `begin` to `end` on the space of a scale."""
    seeds = np.random.SeedSequence(seed).spawn(end)[begin:]
    budget = MARGIN * one.end
    found = (simulate(optimizer, one.space, budget, np.random.default_rng(child)) for child in seeds)
    return np.stack([one.rank(step_curve(one, run))[::STRIDE] for run in found]).astype(np.float32)


class _Fence:
    """The state of the audit hook, of which a process has one."""

    closed = False
    installed = False
    tried: str | None = None


DENIED = ("socket.", "subprocess.", "os.", "shutil.", "ctypes.", "tempfile.", "signal.", "pty.", "gc.", "mmap.")
"""Events that a program causes only where it does what it may not; see the table in Python's documentation."""

SENSITIVE = frozenset({"sys._current_frames", "sys.settrace", "sys.setprofile", "sys.addaudithook"})

HARMLESS = frozenset({"os.listdir", "os.scandir"})
"""What importing a module does."""

READABLE = (".py", ".pyc", ".so")


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _Fence.closed or event in HARMLESS:
        return
    if event == "open":
        path, mode = str(args[0]), args[1]
        denied = not path.endswith(READABLE) or (isinstance(mode, str) and not set(mode) <= set("rb"))
    else:
        denied = event in SENSITIVE or event.startswith(DENIED)
    if denied:
        _Fence.tried = _Fence.tried or f"{event} {shorten(repr(args[:1]), 80)}"
        raise PermissionError(f"a program may not cause {event}")


@contextlib.contextmanager
def fenced() -> Iterator[None]:
    """Let nothing out of this process while the context lasts; raise `Misbehaved` at the end if something tried."""
    if not _Fence.installed:
        sys.addaudithook(_hook)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        _Fence.installed = True
    _Fence.tried, _Fence.closed = None, True
    try:
        yield
    except PermissionError:
        pass
    finally:
        _Fence.closed = False
    if _Fence.tried:
        raise Misbehaved(f"forbidden: it tried {_Fence.tried}")
