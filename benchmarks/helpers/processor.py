"""Describes the processor of this machine. Needs the standard library only, so that a Python
without this project's packages can run it.
"""

import contextlib
import os
import platform
from typing import Any

# {flag in /proc/cpuinfo: name} of the instructions that make matrix products fast
FEATURES = dict(
    avx2="AVX2",
    avx512f="AVX512",
    avx512_bf16="AVX512-bfloat16",
    amx_tile="AMX",
    amx_bf16="AMX-bf16",
)


def processor(path: str = "/proc/cpuinfo") -> dict[str, Any]:
    """Return {"name", "cores", "features"} of the processor. cores: the number that this process
    may use. features: those of FEATURES that the processor has, None where that is not known.
    """
    name = platform.processor() or platform.machine()
    flags: set[str] | None = None
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                name = value
            elif key == "flags":
                flags = set(value.split())
                break
    features = None if flags is None else [name for flag, name in FEATURES.items() if flag in flags]
    return dict(name=name, cores=len(os.sched_getaffinity(0)), features=features)
