"""Any other place that fsspec knows, in the shape of objects: for what has no backend of its own.

fsspec promises little: whether its ``pipe_file(mode="create")`` is atomic depends on the file system
behind it, so no stream is made here before the probe has tried. Its caches of listings are turned
off, because they are shared by the whole process and show yesterday's sizes.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import fsspec

from filestream.errors import (
    ConflictError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage.base import JOURNAL_SURVIVES, Appender, Entry, Storage, check_key

__all__ = ["GenericStorage", "is_known_scheme"]

_UNCACHED: Final = {"use_listings_cache": False, "skip_instance_cache": True}


def is_known_scheme(scheme: str) -> bool:
    """Whether fsspec has a file system for it, installed or not."""
    return scheme in fsspec.available_protocols()


class GenericStorage(Storage):
    """Files below one URL of fsspec.

    Args:
        scheme: as fsspec calls it.
        path: without the scheme.
        options: what that file system takes.
    """

    can_append = False
    levels = MappingProxyType(
        {
            "object": "what the file system behind fsspec survives, of which it says nothing",
            "journal": JOURNAL_SURVIVES,
        }
    )
    # Nobody can say: fsspec has no word for it.
    is_durable = False

    def __init__(self, scheme: str, path: str, options: Mapping[str, str] | None = None) -> None:
        self._scheme = scheme
        self._root = path.rstrip("/")
        self._options = dict(options or {})
        self.url = f"fsspec+{scheme}://{path.rstrip('/')}"
        try:
            self._system: Any = fsspec.filesystem(scheme, **_UNCACHED, **self._options)
        except (ImportError, ValueError, TypeError) as error:
            raise InvalidRequestError(f"fsspec cannot open this: {error} url={self.url}") from error

    def __reduce__(self) -> tuple[object, ...]:
        return GenericStorage, (self._scheme, self._root, self._options)

    def __repr__(self) -> str:
        return f"GenericStorage({self.url!r})"

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}" if key else self._root

    @contextlib.contextmanager
    def _translated(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except FilestreamError:
            raise
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no such file. url={self.url_of(key)}") from error
        except FileExistsError as error:
            raise ConflictError(f"the file exists already. url={self.url_of(key)}") from error
        except NotImplementedError as error:
            raise InvalidRequestError(
                f"cannot {what}: this file system does not offer it. url={self.url_of(key)}"
            ) from error
        except Exception as error:
            # What lies behind fsspec raises errors of its own, and their texts may hold secrets.
            raise UnavailableError(
                f"cannot {what}: {type(error).__name__}. url={self.url_of(key)}"
            ) from None

    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """See ``Storage``: fsspec cannot sync what grows."""
        del durable_name
        raise InvalidRequestError(f"files do not grow here. url={self.url_of(key)}")

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See ``Storage``."""
        path = self._path(key)
        with self._translated("put", key):
            try:
                self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._system.pipe_file(path, data, mode="create")
            except FileExistsError:
                # The file system may have tried twice by itself.
                if self._system.cat_file(path) != data:
                    raise

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``."""
        path = self._path(key)
        with self._translated("read", key):
            end = int(self._system.info(path)["size"])
            if size <= 0 or position >= end:
                return b""
            # By keywords: the order of these arguments differs between file systems.
            return bytes(self._system.cat_file(path, start=position, end=min(position + size, end)))

    def size(self, key: str) -> int:
        """See ``Storage``."""
        with self._translated("look at", key):
            info = self._system.info(self._path(key))
            if info["type"] != "file":
                raise FileNotFoundError(key)
            return int(info["size"])

    def exists(self, key: str) -> bool:
        """See ``Storage``."""
        with self._translated("look at", key):
            return bool(self._system.isfile(self._path(key)))

    def list(self, prefix: str) -> Sequence[Entry]:
        """See ``Storage``."""
        with self._translated("list", prefix):
            try:
                found = self._system.ls(self._path(prefix), detail=True, refresh=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        entries = [
            Entry(f["name"].rstrip("/").rpartition("/")[2], f["type"] == "directory") for f in found
        ]
        return [entry for entry in entries if entry.name]

    def delete(self, key: str) -> None:
        """See ``Storage``."""
        with self._translated("delete", key), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(key))

    def delete_tree(self, prefix: str) -> None:
        """See ``Storage``."""
        with self._translated("delete", prefix), contextlib.suppress(FileNotFoundError):
            self._system.rm(self._path(prefix), recursive=True)
