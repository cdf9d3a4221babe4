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
    place, _, born = process.rpartition("/")
    place, _, number = place.rpartition("/")
    if not place or place != _place() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # It is somebody else's, so it lives, or another with its number does.
    # What cannot be seen is not known to be dead: a system may hide the processes of others.
    now = _born(int(number))
    return now is not None and now != born


def _born(process: int) -> str | None:
    """When a process was born, in ticks since the boot; empty for a zombie, None when not shown."""
    try:
        raw = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    # The name may hold anything; what follows the last bracket has fixed places.
    fields = raw.rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
