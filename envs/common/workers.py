"""Disposable worker processes for code that may crash, hang, or eat all memory.

A pool starts one server: a fresh interpreter that imports what the work needs, and does none of it.
It forks a worker on demand, in milliseconds and with everything imported. A worker runs one call at
a time; after a crash, a time-out or an exhausted memory it is killed with all its children, and a
fresh one takes its place. Calls and results are pickled over a private socket, arrays out of band.

Nothing is left behind: the server kills its workers and leaves when its pool closes, and when the
process that owns the pool dies in any way. POSIX only; memory is limited where `/proc` tells how much is
mapped (Linux).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from envs.common.server import REPLY, REQUEST, exactly, receive, send


@dataclass(frozen=True, slots=True)
class Returned:
    """The call ended normally."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The call raised an exception, of which only the names travel."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker died; `signal` is 0 if it left by itself."""

    signal: int

    def __str__(self) -> str:
        return signal.Signals(self.signal).name if self.signal else "it left without an answer"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The call took more than `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The call wanted more than `limit` bytes beyond what the worker had mapped."""

    limit: int


Outcome = Returned | Raised | Crashed | TimedOut | OutOfMemory


class WorkerError(RuntimeError):
    """The server can't start workers; the message holds the reason."""


class Worker:
    """A place in a pool. The process behind it is replaced whenever it can no longer be trusted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._pid = 0
        self._parent: socket.socket | None = None
        self._calls = 0
        self._limits = (0.0, 0)
        self._running = False
        self._channel: socket.socket | None = None

    def call(self, function: str, *args: Any, timeout: float, memory: int) -> Outcome:
        """Run `module:function` with `args`; never raises for anything the function does.

        `timeout` is in seconds, `memory` in bytes beyond what the worker has mapped.
        """
        with self._pool.lock, self._busy():
            self._begin(function, args, timeout, memory)
            return self._finish(time.monotonic() + timeout)

    def renew(self) -> None:
        """Drop the process; the next call starts in a fresh one."""
        with self._pool.lock:
            self._discard()

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """An interrupted call leaves a process that still works on it: drop it."""
        try:
            yield
        except BaseException:
            self._discard()
            raise

    def _begin(self, function: str, args: Sequence[Any], timeout: float, memory: int) -> socket.socket:
        """Send a call; return the channel that the answer will come by."""
        if self._running:
            raise RuntimeError("the worker is running a job of an unfinished batch")
        if self._calls >= self._pool.recycle:
            self._discard()
        fresh = self._channel is None
        channel = self._channel or self._fork()
        self._calls += 1
        self._limits = (timeout, memory)
        self._running = True
        channel.settimeout(timeout)
        try:
            send(channel, (function, args, memory))
        except (BrokenPipeError, ConnectionResetError):
            if not fresh:  # it died while idle
                self._discard()
                return self._begin(function, args, timeout, memory)
        except TimeoutError:
            pass
        return channel

    def _finish(self, deadline: float) -> Outcome:
        assert self._channel is not None
        timeout, memory = self._limits
        self._running = False
        try:
            kind, value = receive(self._channel, deadline)
        except TimeoutError:
            self._discard()
            return TimedOut(timeout)
        except (EOFError, ConnectionResetError, pickle.UnpicklingError):
            status = self._discard()
            return Crashed(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
        if kind == "memory":
            self._discard()
            return OutOfMemory(memory)
        return Returned(value) if kind == "returned" else Raised(*value)

    def _fork(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._pid = self._pool._fork(theirs.fileno())
        self._channel, self._parent, self._calls = ours, self._pool._control, 0
        return ours

    def _discard(self) -> int:
        """Kill the process, and return its wait status."""
        self._running = False
        if self._channel is None:
            return 0
        self._channel.close()
        self._channel = None
        return self._pool._reap(self._pid) if self._parent is self._pool._control else signal.SIGKILL


class Pool:
    """`size` workers, forked from a server that imports `prepare` (`module`, or `module:function` to call).

    `blocked` modules can't be imported in the server and its workers; `environment` is added to theirs. After
    `recycle` calls a worker is replaced. One batch runs at a time; threads wait for each other. A process
    forked from the owner starts a server of its own.
    """

    def __init__(
        self,
        size: int = 1,
        prepare: str = "",
        *,
        blocked: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        recycle: int = 500,
    ) -> None:
        if size < 1:
            raise ValueError(f"a pool has at least 1 worker, not {size}")
        self.recycle = recycle
        self.lock = threading.RLock()
        self.workers = tuple(Worker(self) for _ in range(size))
        self._setup = (prepare, tuple(blocked))
        self._environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(environment or {})}
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        _POOLS.add(self)

    def call(self, function: str, *args: Any, timeout: float, memory: int) -> Outcome:
        """Run one call in the first worker. See `Worker.call`."""
        return self.workers[0].call(function, *args, timeout=timeout, memory=memory)

    def map(
        self, function: str, jobs: Iterable[Sequence[Any]], *, timeout: float, memory: int
    ) -> Generator[tuple[int, Outcome, Worker], None, None]:
        """Run one call for each tuple of arguments, in parallel.

        Yields the position of the job, its outcome, and the worker that ran it, as they end. `timeout`
        counts from the start of each call.
        """
        with self.lock, selectors.DefaultSelector() as selector:
            waiting = iter(enumerate(jobs))
            running: dict[Worker, tuple[int, float]] = {}

            def start(worker: Worker) -> None:
                for position, args in waiting:
                    with worker._busy():
                        channel = worker._begin(function, args, timeout, memory)
                    running[worker] = (position, time.monotonic() + timeout)
                    selector.register(channel, selectors.EVENT_READ, worker)
                    return

            try:
                for worker in self.workers:
                    start(worker)
                while running:
                    nearest = min(deadline for _, deadline in running.values())
                    events = selector.select(max(0.0, nearest - time.monotonic()))
                    ready = {key.data for key, _ in events}
                    late = {w for w, (_, deadline) in running.items() if deadline <= time.monotonic()}
                    for worker in sorted(ready | late, key=self.workers.index):
                        position, deadline = running[worker]
                        assert worker._channel is not None
                        selector.unregister(worker._channel)
                        outcome = worker._finish(deadline)
                        del running[worker]
                        start(worker)
                        yield position, outcome, worker
            finally:
                for worker in running:
                    worker._discard()

    def close(self) -> None:
        """Kill the workers and the server. The pool may be used again, and starts afresh."""
        with self.lock:
            if self._finalizer is not None:
                for worker in self.workers:
                    worker._discard()
                self._finalizer()
                self._server = self._control = self._finalizer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fork(self, descriptor: int) -> int:
        """Have the server fork a worker that listens to `descriptor`; return its pid."""
        for _ in range(2):
            control = self._control or self._start()
            pid = self._ask(control, b"fork", 0, descriptor)
            if pid is not None:
                return pid
        raise WorkerError("the server of the worker pool dies when it forks")

    def _reap(self, pid: int) -> int:
        """Have the server end a worker; return its wait status."""
        assert self._control is not None
        status = self._ask(self._control, b"reap", pid)
        return signal.SIGKILL if status is None else status

    def _ask(self, control: socket.socket, verb: bytes, pid: int, *descriptors: int) -> int | None:
        """Put one question to the server; None, and no server any more, if it is dead.

        Nor if this is interrupted: an answer that nobody read would pass for that to the next question.
        """
        try:
            socket.send_fds(control, [REQUEST.pack(verb, pid)], descriptors)
            return int(REPLY.unpack(exactly(control, REPLY.size, None))[0])
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._forget()
            return None
        except BaseException:
            self._forget()
            raise

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        command = f"import sys; sys.path[:] = {path!r}; from envs.common.server import serve; serve({theirs.fileno()})"
        with theirs:
            server = subprocess.Popen(
                [sys.executable, "-c", command],
                env={**os.environ, **self._environment},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._server, self._control = server, ours
        self._finalizer = weakref.finalize(self, _shut_down, server, ours)
        try:
            send(ours, self._setup)
            problem = receive(ours)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            problem = "it died before it was ready"
        except BaseException:
            self.close()
            raise
        if problem:
            self.close()
            raise WorkerError(f"the server of the worker pool can't start: {problem}")
        return ours

    def _forget(self) -> None:
        """Give up a server that is dead, or that belongs to the process this one was forked from."""
        if self._control is not None:
            self._control.close()
        if self._finalizer is not None:
            self._finalizer.detach()
        self._server = self._control = self._finalizer = None


def _shut_down(server: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in _POOLS:
        pool.lock = threading.RLock()
        if pool._server is not None:
            pool._server.returncode = 0  # not a child of this process
        for worker in pool.workers:
            if worker._channel is not None:
                worker._channel.close()
                worker._channel = None
        pool._forget()


os.register_at_fork(after_in_child=_after_fork)
