"""URL to storage: the one room that knows every backend, and loads only the one it needs."""

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from filestream.errors import InvalidRequestError
from filestream.storage.base import Storage

__all__ = ["normalise_url", "open_storage", "split_url"]

# What people write, and what obstore calls it.
_OBJECT_SCHEMES: Final = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "abfs",
    "abfss": "abfss",
}
_GENERIC: Final = "fsspec+"

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
        raise InvalidRequestError(f"no URL and no path. url={_shown(text)!r}")
    scheme, path = split_url(text)
    if scheme == "file":
        try:
            return Path(path).absolute().as_uri()
        except (OSError, UnicodeEncodeError) as error:
            raise InvalidRequestError(f"no path: {error}. url={_shown(text)!r}") from error
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
        raise InvalidRequestError(f"no URL and no path: {error}. url={_shown(url)!r}") from error
    if "\0" in unquote(url):
        raise InvalidRequestError(f"a path cannot hold NUL. url={_shown(url)!r}")
    if parts.scheme == "" or "/" in url.split(":", 1)[0] or len(parts.scheme) == 1:
        return "file", path
    if parts.query or parts.fragment:
        raise InvalidRequestError(f"a URL has no ? and no # here. url={_shown(url)!r}")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidRequestError(
                f"a file URL has no host: write file:///path with three slashes. url={_shown(url)!r}"
            )
        if not parts.path:
            raise InvalidRequestError(f"the URL names no path. url={_shown(url)!r}")
        return "file", os.path.normpath(unquote(parts.path))
    if parts.scheme == "memory":
        return "memory", (parts.netloc + parts.path).strip("/")
    return _split_remote(parts.scheme, parts.netloc, parts.path, url)


def _split_remote(scheme: str, authority: str, path: str, url: str) -> tuple[str, str]:
    """Scheme and ``authority/path`` of a place that is not on this machine."""
    user, at, _ = authority.rpartition("@")
    if at and (not scheme.startswith("abfs") or ":" in user):
        raise InvalidRequestError("a URL holds no user and no password here: use the environment.")
    if ".." in path.split("/") or "%" in path:
        raise InvalidRequestError(f"the path holds '..' or '%'. url={_shown(url)!r}")
    below = posixpath.normpath(f"/{path}").strip("/")
    place = f"{authority}/{below}".rstrip("/")
    if scheme == "hdfs" or scheme in _OBJECT_SCHEMES:
        if not authority:
            raise InvalidRequestError(
                f"the URL names no host or bucket: {scheme}://name/path. url={_shown(url)!r}"
            )
        return _OBJECT_SCHEMES.get(scheme, scheme), place
    if scheme.startswith(_GENERIC) or _is_known_to_fsspec(scheme):
        # Where there is no authority the slash before the path means something, as in file:///x.
        return f"{_GENERIC}{scheme.removeprefix(_GENERIC)}", place or "/"
    raise InvalidRequestError(
        "this kind of place is not supported. Use a path, file:///path, hdfs://namenode/path, "
        f"s3://bucket/path, gs://bucket/path or az://container/path. url={_shown(url)!r}"
    )


def _shown(url: str) -> str:
    """A URL for an error: without a user, a password, a query, or what may be a part of them."""
    text = re.split(r"[?#]", url, maxsplit=1)[0]
    head, separator, rest = text.partition("://")
    if separator:
        authority, slash, path = rest.partition("/")
        text = f"{head}://{authority.rpartition('@')[2]}{slash}{path}"
    elif "@" in text:
        text = text.rpartition("@")[2]
    return text[:200]


def _is_known_to_fsspec(scheme: str) -> bool:
    try:
        from filestream.storage.generic import is_known_scheme
    except ImportError:
        return False
    return is_known_scheme(scheme)


def open_storage(url: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Storage:
    """The storage whose root is ``url``; nothing is created and nothing has to exist.

    Args:
        options: for a place that is not on this machine: see ``HdfsStorage``, ``ObjectStorage`` and
            ``GenericStorage``. What is not given comes from the environment.

    Raises:
        InvalidRequestError: as ``normalise_url``, a bad option, or a package is not installed.
    """
    full = normalise_url(url)
    scheme, path = split_url(full)
    if scheme not in ("file", "memory"):
        return _open_remote(scheme, path, full, options)
    if options:
        raise InvalidRequestError(f"a {scheme} URL takes no storage options. url={full}")
    if scheme == "memory":
        from filestream.storage.memory import MemoryStorage

        if not _memory:
            _memory.append(MemoryStorage("memory:/"))
        root = _memory[0]
        assert isinstance(root, MemoryStorage)
        return root.below(path)
    from filestream.storage.local import LocalStorage

    return LocalStorage(path)


def _open_remote(scheme: str, path: str, url: str, options: Mapping[str, str] | None) -> Storage:
    extra = "hdfs" if scheme == "hdfs" else "objects"
    try:
        if scheme == "hdfs":
            from filestream.storage.hdfs import HdfsStorage

            return HdfsStorage(url, options)
        if scheme.startswith(_GENERIC):
            extra = "fsspec"
            from filestream.storage.generic import GenericStorage

            return GenericStorage(scheme.removeprefix(_GENERIC), path, options)
        from filestream.storage.objects import ObjectStorage

        return ObjectStorage(url, options)
    except ImportError as error:
        raise InvalidRequestError(
            f"{error}: pip install 'filestream-engine[{extra}]'. url={url}"
        ) from error
