"""Work beside a wait: while workers build and time a batch, the search thinks about the next one.

The evaluation stays in the calling thread, which Ctrl-C reaches and to which stores are bound; the search goes on in
a thread of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from envs.common.locks import cores

T = TypeVar("T")
U = TypeVar("U")

SWITCH = 2e-4
"""Seconds after which a thread hands over to one that waits; Python's own 5 ms would slow every answer of a worker."""

GRACE = 5.0
"""Seconds that abandoned work has to notice."""


def spare_core(threads: int) -> bool:
    """Whether this process may use a core beside measured kernels of so many threads."""
    return len(cores()) > threads


def alongside(wait: Callable[[], T], work: Callable[[], U], abandon: Callable[[], None]) -> tuple[T, U]:
    """Return what `wait`, called here, and `work`, called in a thread, return; raises what either raises.

    If `wait` raises, KeyboardInterrupt included, `abandon` is called, which tells `work` to return.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH, interval))
    pool = ThreadPoolExecutor(1, "search")
    task = pool.submit(work)
    try:
        return wait(), task.result()
    except BaseException:
        abandon()
        futures.wait([task], GRACE)
        raise
    finally:
        pool.shutdown(wait=task.done())
        sys.setswitchinterval(interval)
