"""The other side of a worker pool: the server that forks, the worker that answers, and what they say.

Runs in processes of its own, started by `envs.common.workers`; imports nothing that the work does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

MAX_MESSAGE_BYTES = 4 * 2**30
"""A call or a result; a worker that wants to return more has failed."""

MAX_TEXT = 2_000
"""Characters kept of an exception's message."""


def send(channel: socket.socket, value: Any) -> None:
    """Send a message: a count, the sizes, then a pickle and its buffers. Raises `ValueError` if it is too long."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    parts: list[bytes | memoryview] = [head, *(buffer.raw() for buffer in buffers)]
    sizes = [len(part) for part in parts]
    if sum(sizes) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {sum(sizes):,} bytes; the limit is {MAX_MESSAGE_BYTES:,}")
    channel.sendall(struct.pack(f"!Q{len(sizes)}Q", len(sizes), *sizes))
    for part in parts:
        channel.sendall(part)


def receive(channel: socket.socket, deadline: float | None = None) -> Any:
    """Return the next message. Raises `EOFError` if the other end is gone, `TimeoutError` at the deadline."""
    (count,) = struct.unpack("!Q", exactly(channel, 8, deadline))
    if count > 2**20:
        raise EOFError("not a message")
    sizes = struct.unpack(f"!{count}Q", exactly(channel, 8 * count, deadline))
    if sum(sizes) > MAX_MESSAGE_BYTES:
        raise EOFError("not a message")
    head, *buffers = [exactly(channel, size, deadline) for size in sizes]
    return pickle.loads(head, buffers=buffers)


def exactly(channel: socket.socket, size: int, deadline: float | None) -> bytearray:
    """Return the next `size` bytes. Raises as `receive` does."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
        got = channel.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data


REQUEST = struct.Struct("!4sq")
"""`fork` (with a socket) or `reap`, and the pid to reap."""

REPLY = struct.Struct("!q")
"""The pid that was forked, or the wait status of the one reaped."""


def serve(descriptor: int) -> NoReturn:
    """Run the server at the other end of the socket `descriptor` until that end closes."""
    control = socket.socket(fileno=descriptor)
    children: set[int] = set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _prepare(control)
        while True:
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 1)
            if len(request) < REQUEST.size:
                break
            verb, pid = REQUEST.unpack(request)
            if verb == b"fork":
                pid = os.fork()
                if pid == 0:
                    control.close()
                    _work(socket.socket(fileno=descriptors[0]))
                os.close(descriptors[0])
                children.add(pid)
                answer = pid
            else:
                children.discard(pid)
                answer = _end(pid)
            control.sendall(REPLY.pack(answer))
    finally:
        for pid in children:
            _end(pid)
        os._exit(0)


def _prepare(control: socket.socket) -> None:
    prepare, blocked = receive(control)
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]
    problem = ""
    try:
        module, _, function = prepare.partition(":")
        loaded = importlib.import_module(module) if module else None
        if function:
            getattr(loaded, function)()
    except BaseException:  # noqa: BLE001 (whatever it is, the owner is told)
        problem = traceback.format_exc(limit=-8)
    # What is imported by now is shared with every worker: keep the collector from touching those pages.
    gc.collect()
    gc.freeze()
    send(control, problem)


def _end(pid: int) -> int:
    """Kill a worker and its process group; return its wait status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _work(channel: socket.socket) -> NoReturn:
    """Answer calls until the owner is gone."""
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        # Libraries install handlers that print a backtrace, slowly; a crash is to be a plain signal.
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while True:
            function, args, memory = receive(channel)
            _answer(channel, _run(function, args, memory))
    finally:
        os._exit(0)


def _die_with_parent() -> None:
    """Have the kernel kill this worker should the server be killed (Linux only)."""
    if sys.platform == "linux":
        server = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != server:
            os._exit(0)


def _run(function: str, args: Sequence[Any], memory: int) -> tuple[str, Any]:
    _limit_memory(memory)
    try:
        return "returned", _resolve(function)(*args)
    except MemoryError:
        return "memory", None
    except BaseException as error:  # noqa: BLE001 (the boundary: whatever a candidate does is a value)
        return "raised", (type(error).__name__, str(error)[:MAX_TEXT])
    finally:
        _limit_memory(None)


def _answer(channel: socket.socket, answer: tuple[str, Any]) -> None:
    try:
        send(channel, answer)
    except (ValueError, TypeError, AttributeError, pickle.PicklingError) as error:
        send(channel, ("raised", (type(error).__name__, f"the result can't be sent: {error}"[:MAX_TEXT])))


def _resolve(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _limit_memory(extra: int | None) -> None:
    """Allow `extra` bytes of address space beyond what is mapped (None: no limit)."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(statm.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (hard if extra is None else mapped + extra, hard))
