"""Small documents with compare-and-set: the only thing that several processes agree through.

A property store keeps named documents of bytes. Each has one version, which only grows, from 1;
version 0 means "there is none". Generations, stream properties and consumer states live here,
each as one document, so that one compare-and-set changes all that belongs together.

Rule: backends import this file and never each other; only ``open.py`` knows them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from filestream.errors import ConflictError
from filestream.storage.base import Lock

__all__ = ["Document", "PropertyStore", "Watch"]


@dataclass(frozen=True, slots=True)
class Document:
    """One version of a document; version 0 is the absence of the document."""

    value: bytes
    version: int


class Watch(ABC):
    """Tells of a document's versions until it is closed; ``with`` closes."""

    @abstractmethod
    def close(self) -> None:
        """No call begins after this one has returned; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


class PropertyStore(ABC):
    """Documents by name (``generation``, ``groups/billing``); safe to use from many threads."""

    @abstractmethod
    def get(self, name: str) -> Document:
        """The newest version; ``Document(b"", 0)`` when there is none."""

    @abstractmethod
    def compare_and_set(self, name: str, value: bytes, *, version: int) -> Document:
        """Replace the document if its version is still ``version`` (0: create it).

        Raises:
            ConflictError: it is not; nothing was changed.
            UnavailableError: the store failed; the change may have happened.
        """

    @abstractmethod
    def is_current(self, name: str, version: int) -> bool:
        """Whether ``version`` is the newest one; cheap enough for every acknowledgement.

        A store with a server may answer from what it heard of the server up to ``lease_s`` ago;
        ``settle`` is the other half of that bargain.

        Raises:
            UnavailableError: the server could not be asked for so long that nobody knows.
        """

    @property
    def lease_s(self) -> float:
        """How old an answer of ``is_current`` may be; 0 where every look is fresh."""
        return 0.0

    def settle(self, name: str, version: int) -> None:
        """Return once no process can be told any more that a version below this one is current.

        Takes up to ``lease_s`` when a process that holds an answer is silent.
        """
        del name, version

    @abstractmethod
    def list(self, prefix: str) -> Sequence[str]:
        """Names of the documents directly below ``prefix``, sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a document; fine when there is none."""

    @abstractmethod
    def watch(self, name: str, tell: Callable[[Document], None]) -> Watch:
        """Call ``tell`` with the document as it is now, and again whenever it has changed.

        Versions in between may be left out, the last one never is. ``tell`` runs on a thread of the
        store, one call at a time, and must not wait for long; what it raises is logged.
        """

    @abstractmethod
    def delete_all(self) -> None:
        """Remove every document and claim; the stream is gone."""

    @abstractmethod
    def claim(self, name: str) -> Lock:
        """Hold a name until closed, or until this process dies.

        A store with a server loses a claim when the server has not heard of this process for the
        time of a session: look at ``Lock.is_held`` before trusting it.

        Raises:
            ConflictError: another living process holds it.
        """

    @abstractmethod
    def holders(self, prefix: str) -> Sequence[str]:
        """Names directly below ``prefix`` that living processes hold now, sorted."""

    def update(
        self, name: str, change: Callable[[Document], bytes], *, tries: int = 100
    ) -> Document:
        """Read, change and compare-and-set until it succeeds.

        Raises:
            ConflictError: others were faster ``tries`` times.
        """
        for _ in range(tries):
            before = self.get(name)
            try:
                return self.compare_and_set(name, change(before), version=before.version)
            except ConflictError:
                continue
        raise ConflictError(f"others kept changing the document. name={name} tries={tries}")
