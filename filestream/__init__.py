"""filestream: append, tail, truncate and scan streams that are directories of files.

This is the face: it defines nothing and hands names on, loading each room when it is asked for.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.cfg").is_file():
    # In a checkout the upper rooms stand beside this folder, not inside it;
    # an installed wheel has them inside, and this line never runs.
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from filestream.codec import kernel
    from filestream.consumers.admin import Group
    from filestream.consumers.batch import Batch
    from filestream.consumers.consumer import Consumer
    from filestream.consumers.sqlite import SqlitePositions
    from filestream.consumers.stream import Stream, create, open
    from filestream.errors import (
        ConflictError,
        CorruptDataError,
        FencedError,
        FilestreamError,
        InvalidRequestError,
        NotFoundError,
        UnavailableError,
        UnsupportedVersionError,
    )
    from filestream.partitions.event import Event
    from filestream.partitions.layout import Offset
    from filestream.partitions.reader import Scan, Tail
    from filestream.partitions.streams import exists, list_streams
    from filestream.partitions.writer import StreamWriter

_ROOMS = {
    "filestream.codec": ("kernel",),
    "filestream.errors": (
        "ConflictError",
        "CorruptDataError",
        "FencedError",
        "FilestreamError",
        "InvalidRequestError",
        "NotFoundError",
        "UnavailableError",
        "UnsupportedVersionError",
    ),
    "filestream.version": ("VERSION",),
    "filestream.partitions.event": ("Event",),
    "filestream.partitions.layout": ("Offset",),
    "filestream.partitions.reader": ("Scan", "Tail"),
    "filestream.partitions.streams": ("exists", "list_streams"),
    "filestream.consumers.admin": ("Group",),
    "filestream.consumers.batch": ("Batch",),
    "filestream.consumers.consumer": ("Consumer",),
    "filestream.consumers.sqlite": ("SqlitePositions",),
    "filestream.consumers.stream": ("Stream", "create", "open"),
    "filestream.partitions.writer": ("StreamWriter",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Batch",
    "ConflictError",
    "Consumer",
    "CorruptDataError",
    "Event",
    "FencedError",
    "FilestreamError",
    "Group",
    "InvalidRequestError",
    "NotFoundError",
    "Offset",
    "Scan",
    "SqlitePositions",
    "Stream",
    "StreamWriter",
    "Tail",
    "UnavailableError",
    "UnsupportedVersionError",
    "create",
    "exists",
    "kernel",
    "list_streams",
    "open",
]


def __getattr__(name: str) -> object:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module 'filestream' has no attribute {name!r}")
    return getattr(importlib.import_module(room), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
