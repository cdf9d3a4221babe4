"""Time comes in by argument: a wall clock and a way to wait, so that tests can own both."""

import threading
import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock", "since_boot_s"]


class Clock(Protocol):
    """What the engine needs of time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970-01-01T00:00:00Z; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back; only differences mean anything."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Block the thread for about ``duration_s``."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held condition; False when the time ran out."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """See ``Clock``."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """See ``Clock``."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """See ``Clock``."""
        time.sleep(duration_s)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """See ``Clock``."""
        return condition.wait(timeout_s)


class ManualClock:
    """A clock that stands still until a test moves it; waiting threads wake on each move."""

    def __init__(self, now_ms: int = 1_401_408_000_000) -> None:
        self._lock = threading.Lock()
        self._wall_ms = now_ms
        self._elapsed_s = 0.0
        self._waiting: list[threading.Condition] = []

    def now_ms(self) -> int:
        """See ``Clock``."""
        return self._wall_ms

    def monotonic_s(self) -> float:
        """See ``Clock``."""
        return self._elapsed_s

    def sleep(self, duration_s: float) -> None:
        """Moves the clock instead of blocking."""
        self.advance(duration_s)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Waits for a notification or for ``advance``; real time is only a safety net."""
        del timeout_s
        with self._lock:
            self._waiting.append(condition)
        notified = condition.wait(0.5)
        with self._lock:
            self._waiting.remove(condition)
        return notified

    def advance(self, duration_s: float) -> None:
        """Move both clocks forward and wake whoever waits."""
        self._elapsed_s += duration_s
        self.jump(round(duration_s * 1000))

    def jump(self, milliseconds: int) -> None:
        """Move the wall clock alone, also backwards, as an administrator would."""
        self._wall_ms += milliseconds
        with self._lock:
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()


def since_boot_s() -> float:
    """A clock that also counts while the machine sleeps, where there is one: for leases."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
