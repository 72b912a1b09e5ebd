"""Python's garbage collector, kept out of what it would slow down or disturb."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Put collections off while the context lasts.

    For measurements, and for short stretches that build many small records which will be kept: there, collecting
    again and again costs more than a third of the time and finds nothing.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
