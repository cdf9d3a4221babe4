"""How long an answer about a version is believed where each question is a request to a store far away.

A writer asks before and after each commit whether its generation is current. So an answer is believed
for a second from the moment it was *asked* for, by a clock that also counts while the machine sleeps; and
whoever has changed the document waits as long before he says that it is changed. Then nobody can
believe the old version any more. Assumption: two clocks differ in rate by less than a tenth.
"""

import time
from typing import Final

from filestream.clock import since_boot_s

__all__ = ["BELIEVED_S", "Beliefs"]

BELIEVED_S: Final = 1.0
_CLOCKS_DIFFER: Final = 1.1


class Beliefs:
    """What one store heard last of each document; safe to use from many threads."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, float]] = {}

    def hear(self, name: str, version: int, asked_s: float) -> None:
        """The answer to a question that was asked then."""
        self._heard[name] = (version, asked_s)

    def forget(self, name: str) -> None:
        """This process changed the document itself."""
        self._heard.pop(name, None)

    def holds(self, name: str, version: int) -> bool:
        """Whether this version is still believed to be the newest."""
        heard, asked_s = self._heard.get(name, (-1, 0.0))
        return heard == version and since_boot_s() - asked_s < BELIEVED_S

    @staticmethod
    def outlive() -> None:
        """Return when no process can believe what was true before."""
        time.sleep(BELIEVED_S * _CLOCKS_DIFFER)  # noqa: TID251 - others go by their clocks
