"""The closed list of errors, sorted by what the caller does next.

Nothing else leaves filestream: errors of the operating system and of libraries are translated
once, in the backend that met them, with ``raise ... from error``. The class is the interface;
the message is for people and may change.
"""

from typing import Final

__all__ = [
    "ConflictError",
    "CorruptDataError",
    "FencedError",
    "FilestreamError",
    "InvalidRequestError",
    "NotFoundError",
    "UnavailableError",
    "UnsupportedVersionError",
]


class FilestreamError(Exception):
    """Base of every error of this library; catch it only to report."""


class InvalidRequestError(FilestreamError, ValueError):
    """Mend the call: it can never succeed as it is; nothing was written."""


class NotFoundError(FilestreamError, LookupError):
    """Create the thing, or mend its name."""


class ConflictError(FilestreamError):
    """Read again, decide again, retry: another party was first."""


class FencedError(FilestreamError):
    """Close and reopen; never retry as it is: the place was truncated or taken over."""


class UnavailableError(FilestreamError):
    """Retry with backoff: the request was sound, the store failed it.

    After a failed append the events **may** be in the stream.
    """


class CorruptDataError(FilestreamError):
    """Stop, keep the file, call a human.

    Attributes:
        url: the damaged file.
        position: byte distance from its start at which the damage begins.
    """

    def __init__(self, message: str, *, url: str = "", position: int = 0) -> None:
        super().__init__(f"{message} url={url} position={position}" if url else message)
        self.message: Final = message
        self.url: Final = url
        self.position: Final = position

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments need help to cross a process border (Spark workers).
        return _rebuild_corrupt, (self.message, self.url, self.position)


class UnsupportedVersionError(FilestreamError):
    """Upgrade the reader: the file is sound, this version cannot read it."""


def _rebuild_corrupt(message: str, url: str, position: int) -> CorruptDataError:
    return CorruptDataError(message, url=url, position=position)
