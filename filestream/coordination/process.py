"""Who this process is, so that another on the same machine can tell that it is dead.

Certain or silent: an answer that may be wrong is "not known to be dead". Linux alone tells enough:
the boot, the namespace of process ids, the id and the time of birth, which together no two share.
"""

import os
from functools import cache
from pathlib import Path

__all__ = ["is_known_dead", "own_process"]


@cache
def _place() -> str:
    """Names the boot and the namespace; empty where they cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def own_process() -> str:
    """A text for ``is_known_dead``; empty where the system tells too little."""
    born = _born(os.getpid())
    return f"{_place()}/{os.getpid()}/{born}" if _place() and born else ""


def is_known_dead(process: str) -> bool:
    """Whether the process that called itself so has certainly ended."""
    place, _, rest = process.rpartition("/")
    place, _, number = place.rpartition("/")
    if not place or place != _place() or not number.isdigit():
        return False
    return _born(int(number)) != rest


def _born(process: int) -> str:
    """When a process was born, in ticks since the boot; empty when it is gone or a zombie."""
    try:
        raw = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name may hold spaces and brackets; what follows the last bracket has fixed places.
    fields = raw.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
