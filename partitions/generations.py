"""The current generation of a stream: one small document, advanced by compare-and-set.

Truncation is that one step. Whoever holds files of an older generation finds out by looking
(``is_current``): a writer after each sync and before the acknowledgement, a reader when it finds
nothing new or a file gone.
"""

import json
import logging
from dataclasses import dataclass
from typing import Final

from filestream.coordination.base import Document, PropertyStore
from filestream.errors import CorruptDataError, NotFoundError

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

    def is_current(self, generation: Generation) -> bool:
        """Whether it still is; cheap enough for every acknowledgement."""
        return self._store.is_current(_NAME, generation.version)

    def begin(self, first: int, now_ms: int) -> None:
        """Write the document of a new stream, or go past what an older one left behind."""

        def change(before: Document) -> bytes:
            number = max(first, self._parse(before)[0] + 1) if before.version else first
            return _encode(number, now_ms)

        self._store.update(_NAME, change)

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

        self._store.update(_NAME, change)
        logger.info("generation advanced", extra={"stream": self._url, "generation": after})
        return before, after

    def _parse(self, document: Document) -> tuple[int, int]:
        try:
            raw = json.loads(document.value)
            number, since_ms = raw["generation"], raw["since_ms"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                "the document of the generation is damaged.", url=self._url
            ) from error
        if not isinstance(number, int) or number < 1 or not isinstance(since_ms, int):
            raise CorruptDataError("the document of the generation is damaged.", url=self._url)
        return number, since_ms


def _encode(number: int, now_ms: int) -> bytes:
    return json.dumps({"generation": number, "since_ms": now_ms}).encode()
