"""What was fixed when a stream was created: ``_stream/stream.json``, put there whole and once."""

from dataclasses import dataclass
from typing import Final

from filestream.documents import decode_document, encode_document
from filestream.errors import (
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedVersionError,
)
from filestream.partitions.layout import DESCRIPTION_KEY, check_stream_name
from filestream.settings import StreamProperties
from filestream.storage.base import Storage

__all__ = ["Description", "read_description"]

_VERSION: Final = 1
_DESCRIPTION_SIZE_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Description:
    """What ``stream.json`` holds.

    Attributes:
        first_generation: 1, or behind what a stream of this name left when it was deleted.
    """

    id: str
    coordination: str
    created_at_ms: int
    first_generation: int
    properties: StreamProperties

    def to_document(self) -> bytes:
        """The bytes of ``stream.json``."""
        return encode_document(
            {
                "version": _VERSION,
                "id": self.id,
                "coordination": self.coordination,
                "created_at_ms": self.created_at_ms,
                "first_generation": self.first_generation,
                "properties": self.properties.to_json(),
            }
        )

    @classmethod
    def parse(cls, data: bytes, url: str) -> "Description":
        """What the bytes of ``stream.json`` say.

        Raises:
            CorruptDataError: damaged.
            UnsupportedVersionError: made by a later release.
        """
        raw = decode_document(data, url=url)
        version = raw.get("version")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise CorruptDataError("the stream's description is damaged.", url=url)
        if version > _VERSION:
            raise UnsupportedVersionError(
                f"the stream was made by a later release: upgrade. version={version} url={url}"
            )
        try:
            identity = str(raw["id"])
            check_stream_name(identity)
            return cls(
                identity,
                str(raw["coordination"]),
                int(raw["created_at_ms"]),
                int(raw["first_generation"]),
                StreamProperties.from_json(raw["properties"], url=url),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptDataError("the stream's description is damaged.", url=url) from error


def read_description(storage: Storage) -> Description:
    """The description of the stream at a place.

    Raises:
        NotFoundError: there is none.
    """
    try:
        data = storage.read(DESCRIPTION_KEY, 0, _DESCRIPTION_SIZE_MAX)
    except (NotFoundError, InvalidRequestError) as error:
        raise NotFoundError(
            f"there is no stream: create it, or mend the path. url={storage.url}"
        ) from error
    return Description.parse(data, storage.url)
