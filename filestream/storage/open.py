"""URL to storage: the one room that knows every backend, and loads only the one it needs."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from filestream.errors import InvalidRequestError
from filestream.storage.base import Storage

__all__ = ["normalise_url", "open_storage", "split_url"]

# One shelf a process: every open of memory://x meets the same files.
_memory: Final[list[Storage]] = []


def normalise_url(url: str | os.PathLike[str]) -> str:
    """A full URL without a slash at its end; a bare path becomes an absolute ``file:`` URL.

    Raises:
        InvalidRequestError: the text names no place, or a scheme that is not supported.
    """
    try:
        text = os.fsdecode(url)
    except TypeError as error:
        raise InvalidRequestError(f"no URL and no path. type={type(url).__name__}") from error
    if not text.strip() or "\0" in text:
        raise InvalidRequestError(f"no URL and no path. url={text!r:.200}")
    scheme, path = split_url(text)
    if scheme == "file":
        try:
            return Path(path).absolute().as_uri()
        except (OSError, UnicodeEncodeError) as error:
            raise InvalidRequestError(f"no path: {error}. url={text!r:.200}") from error
    return f"{scheme}://{path}"


def split_url(url: str) -> tuple[str, str]:
    """Scheme and path of a URL or a bare path.

    Raises:
        InvalidRequestError: a scheme that is not supported, or a host in a ``file:`` URL.
    """
    try:
        parts = urlsplit(url)
        path = os.path.normpath(Path(url).expanduser())
    except (ValueError, RuntimeError) as error:
        raise InvalidRequestError(f"no URL and no path: {error}. url={url!r:.200}") from error
    if "\0" in unquote(url):
        raise InvalidRequestError(f"a path cannot hold NUL. url={url!r:.200}")
    if parts.scheme == "" or "/" in url.split(":", 1)[0] or len(parts.scheme) == 1:
        return "file", path
    if parts.query or parts.fragment:
        raise InvalidRequestError(f"a URL has no ? and no # here. url={url!r:.200}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidRequestError(
                f"a file URL has no host: write file:///path with three slashes. url={url!r:.200}"
            )
        if not parts.path:
            raise InvalidRequestError(f"the URL names no path. url={url!r:.200}")
        return "file", os.path.normpath(unquote(parts.path))
    if parts.scheme == "memory":
        return "memory", (parts.netloc + parts.path).strip("/")
    raise InvalidRequestError(
        f"this kind of place is not supported. Use file:///path or a bare path. url={url!r:.200}"
    )


def open_storage(url: str | os.PathLike[str]) -> Storage:
    """The storage whose root is ``url``; nothing is created and nothing has to exist.

    Raises:
        InvalidRequestError: as ``normalise_url``.
    """
    scheme, path = split_url(normalise_url(url))
    if scheme == "memory":
        from filestream.storage.memory import MemoryStorage

        if not _memory:
            _memory.append(MemoryStorage("memory:/"))
        root = _memory[0]
        assert isinstance(root, MemoryStorage)
        return root.below(path)
    from filestream.storage.local import LocalStorage

    return LocalStorage(path)
