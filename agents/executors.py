"""Where independent calls run: here, one after another; in processes side by side; or on a Ray cluster.

All have the shape of `concurrent.futures`: `submit` gives a promise whose `result` is what the call returns. Timings
stay alone on their cores wherever they run: measurements take the locks of these (`envs.common.locks`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from envs.common.locks import cores

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

RETRIES = 3
"""How often Ray runs a call again whose worker died. What such a call measured is in the store, and not lost."""


PROBE_SECONDS = 5.0
"""How long a cluster may take to accept a connection; Ray itself would try for minutes."""


class ExecutorError(RuntimeError):
    """The executor is not there, or could not finish a call."""


class Promise(Protocol[T_co]):
    """What a call will return."""

    def result(self) -> T_co:
        """Wait for it; raises what the call raised."""
        ...

    def done(self) -> bool:
        """Whether `result` has nothing to wait for."""
        ...


class Executor(Protocol):
    """Runs calls. What is sent to it must pickle unless it is `Local`."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Promise[T]:
        """Ask for a call."""
        ...

    def close(self) -> None:
        """Let go of everything; calls that have not ended are dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Deferred(Generic[T]):
    """A call that runs when its result is asked for."""

    call: Callable[[], T]

    def result(self) -> T:
        """Run it."""
        return self.call()

    def done(self) -> bool:
        """Never before it was asked for."""
        return False


class Local:
    """In this process, one call after another, each when its result is asked for."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Note a call."""
        return Deferred(lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Hold nothing, close nothing."""


class Processes:
    """In `count` processes of this machine, each pinned to its share of the cores.

    Pinned apart, they time side by side: what they share is the memory and the last cache. Raises `ExecutorError`
    for more processes than cores, and where a system pins none.
    """

    def __init__(self, count: int) -> None:
        mine = cores()
        if count > len(mine):
            raise ExecutorError(f"{count} processes want a core each, and there are {len(mine)}")
        if not hasattr(os, "sched_setaffinity"):
            raise ExecutorError("this system pins no process to a core: use the executor local")
        context = multiprocessing.get_context("spawn")
        shares = context.Queue()
        for n in range(count):
            shares.put(mine[n * len(mine) // count : (n + 1) * len(mine) // count])
        self._pool = ProcessPoolExecutor(count, context, _settle, (shares,))

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Promise[T]:
        """Send a call to whichever process is free next."""
        return self._pool.submit(function, *args, **kwargs)

    def close(self) -> None:
        """End the processes; a call in one of them ends with it."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _settle(shares: Any) -> None:
    """Take a share of the cores; Ctrl-C is for the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, shares.get())


@dataclass(frozen=True, slots=True)
class Remote(Generic[T]):
    """A call on the cluster."""

    reference: Any

    def result(self) -> T:
        """Wait for it. Raises what the call raised, or `ExecutorError` where no worker survives it."""
        import ray

        try:
            value: T = ray.get(self.reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise ExecutorError(f"Ray could not finish a call: {error}") from error
        return value

    def done(self) -> bool:
        """Ask the cluster."""
        import ray

        return bool(ray.wait([self.reference], timeout=0)[0])


class Ray:
    """On a Ray cluster: that at `address`, or one of this machine with `workers` workers (as many as it has cores).

    A call whose worker dies is run again, up to `retries` times. All machines need the same installation, and the
    files that calls name. A process that is in a cluster already stays in it. Raises `ExecutorError` where Ray is not
    installed or the cluster does not answer.
    """

    def __init__(self, address: str = "", workers: int | None = None, retries: int = RETRIES) -> None:
        try:
            import ray
        except ImportError:
            raise ExecutorError("the executor ray needs Ray: pip install 'leirgym[ray]'") from None
        self._joined = not ray.is_initialized()
        # A cluster that is there has the workers it has.
        where: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            if self._joined:
                _probe(address)
                ray.init(**where, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError) as error:
            raise ExecutorError(f"no Ray cluster at {address or 'this machine'}: {error}") from error
        self._remote: Any = ray.remote(max_retries=retries)(_call)

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Remote[T]:
        """Send a call."""
        return Remote(self._remote.remote(function, args, kwargs))

    def close(self) -> None:
        """Leave the cluster that was joined; one that was started ends."""
        import ray

        if self._joined:
            ray.shutdown()


def _probe(address: str) -> None:
    """Connect once to `host:port` or `ray://host:port`; raises OSError where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()


def _call(function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return function(*args, **kwargs)


EXECUTORS: dict[str, Callable[[], Executor]] = {"local": Local, "ray": Ray}
"""By name. `local:N` is N processes, `ray:ADDRESS` the cluster at an address."""


def open_executor(name: str) -> Executor:
    """The executor called `local`, `local:N`, `ray` or `ray:ADDRESS`.

    Raises ValueError for another name, `ExecutorError` for an executor that is not there.
    """
    kind, colon, detail = name.partition(":")
    if kind == "local" and detail.isdecimal() and int(detail):
        return Processes(int(detail))
    if kind not in EXECUTORS or (colon and not (detail and kind == "ray")):
        raise ValueError(f"no executor is called {name}; there are local, local:N, ray and ray:ADDRESS")
    return Ray(detail) if detail else EXECUTORS[kind]()
