"""The current generation of a stream: one small document, advanced by compare-and-set.

Truncation is that one step. Whoever holds files of an older generation finds out by looking
(``is_current``): a writer after each sync and before the acknowledgement, a reader when it finds
nothing new or a file gone.
"""

import contextlib
import logging
from dataclasses import dataclass
from typing import Final

from filestream.coordination.base import Document, PropertyStore
from filestream.documents import decode_document, encode_document
from filestream.errors import ConflictError, CorruptDataError, NotFoundError

__all__ = ["Generation", "Generations"]

logger = logging.getLogger(__name__)

_NAME: Final = "generation"


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation, and the version of the document that says so.

    Attributes:
        since_ms: wall clock of the process that began it.
    """

    number: int
    version: int
    since_ms: int = 0


class Generations:
    """Args:
    store: of the stream.
    url: of the stream, for errors.
    """

    def __init__(self, store: PropertyStore, url: str) -> None:
        self._store = store
        self._url = url

    def current(self) -> Generation:
        """The generation that is the stream now.

        Raises:
            NotFoundError: there is none: the stream was deleted.
        """
        document = self._store.get(_NAME)
        if document.version == 0:
            raise NotFoundError(f"the stream does not exist (any more). url={self._url}")
        number, since_ms = self._parse(document)
        return Generation(number, document.version, since_ms)

    def exists(self) -> bool:
        """Whether the first document was written."""
        return self._store.get(_NAME).version > 0

    def is_current(self, generation: Generation) -> bool:
        """Whether it still is; cheap enough for every acknowledgement."""
        return self._store.is_current(_NAME, generation.version)

    def begin(self, first: int, now_ms: int) -> None:
        """Write the first document of a stream; fine when another process was faster."""
        with contextlib.suppress(ConflictError):
            self._store.compare_and_set(_NAME, _encode(first, now_ms), version=0)

    def advance(self, now_ms: int) -> tuple[int, int]:
        """Start the next generation; returns the number before and the new one.

        Raises:
            NotFoundError: the stream does not exist (any more).
        """
        before = after = 0

        def change(document: Document) -> bytes:
            nonlocal before, after
            if document.version == 0:
                raise NotFoundError(f"the stream does not exist (any more). url={self._url}")
            before = self._parse(document)[0]
            after = before + 1
            return _encode(after, now_ms)

        document = self._store.update(_NAME, change)
        # Not before nobody can acknowledge into the old one any more.
        self._store.settle(_NAME, document.version)
        logger.info("generation advanced", extra={"stream": self._url, "generation": after})
        return before, after

    def _parse(self, document: Document) -> tuple[int, int]:
        raw = decode_document(document.value, url=self._url)
        number, since_ms = raw.get("generation"), raw.get("since_ms")
        if not isinstance(number, int) or not 0 < number < 10**9 or not isinstance(since_ms, int):
            raise CorruptDataError("the document of the generation is damaged.", url=self._url)
        return number, since_ms


def _encode(number: int, now_ms: int) -> bytes:
    return encode_document({"generation": number, "since_ms": now_ms})
