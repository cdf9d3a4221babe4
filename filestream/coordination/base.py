"""Small documents with compare-and-set: the only thing that several processes agree through.

A property store keeps named documents of bytes. Each has one version, which only grows, from 1;
version 0 means "there is none". Generations, stream properties and consumer states live here,
each as one document, so that one compare-and-set changes all that belongs together.

Rule: backends import this file and never each other; only ``open.py`` knows them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from filestream.errors import ConflictError
from filestream.storage.base import Lock

__all__ = ["Document", "PropertyStore"]


@dataclass(frozen=True, slots=True)
class Document:
    """One version of a document; version 0 is the absence of the document."""

    value: bytes
    version: int


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
        """Whether ``version`` is the newest one; cheap enough for every acknowledgement."""

    @abstractmethod
    def list(self, prefix: str) -> Sequence[str]:
        """Names of the documents directly below ``prefix``, sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a document; fine when there is none."""

    @abstractmethod
    def claim(self, name: str) -> Lock:
        """Hold a name until closed, or until this process dies.

        Raises:
            ConflictError: another living process holds it.
        """

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
