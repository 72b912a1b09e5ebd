"""Size limits of LEIR programs: what is refused before anything is built or run."""

MAX_EQUATIONS = 512
"""Equations in one program."""

MAX_EXTENT = 2**31 - 1
"""Iterations of one loop."""

VECTOR_WIDTHS = (2, 4, 8, 16, 32, 64)
"""Extents a vectorised loop may have."""

MAX_UNROLLED = 256
"""Copies of equations that unrolled and vectorised-in-unrolled loops may expand to, in one nest."""

MAX_TEMPORARY_BYTES = 256 * 2**20
"""One temporary."""

MAX_PROGRAM_BYTES = 2 * 2**30
"""All tensors of a program together."""

MAX_FLOPS = 2e12
"""Arithmetic of one run; more can't be verified in reasonable time."""

MAX_THREADS_PER_BLOCK = 1024
MAX_THREADS = {"tx": 1024, "ty": 1024, "tz": 64}
MAX_BLOCKS = {"bx": 2**31 - 1, "by": 65535, "bz": 65535}
MAX_SHARED_BYTES = 48 * 1024
"""CUDA limits (CUDA C++ programming guide, compute capabilities)."""
