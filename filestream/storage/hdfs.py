"""HDFS by ``hdfs-native``: no Java in the client.

A file grows under its creator's lease; ``hsync`` returns when every DataNode of the pipeline has
synced, and tells the NameNode the new length. ``recover_lease`` takes the lease from whoever has
it, after which his next sync fails: the store itself fences a writer that was taken for dead.

The library reads closed blocks only, so what is synced into the open last block of a file is read
through WebHDFS (``storage/hdfs_web.py``). Where that is off, readers see a file once it is closed, and
``reads_open_files`` tells writers to close theirs often.

To close a file may take the NameNode half a second, until a DataNode has reported the last block; so
that is done by a thread. All bytes were synced before, and a file that stays open is closed by the
NameNode in time.
"""

import atexit
import contextlib
import ctypes
import logging
import os
import posixpath
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import hdfs_native

from filestream.errors import (
    ConflictError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage.base import Appender, Entry, ForkGuard, Storage, check_key
from filestream.storage.hdfs_patience import Patience
from filestream.storage.hdfs_web import WebHdfs, site_values, web_addresses

__all__ = ["HdfsStorage"]

logger = logging.getLogger(__name__)

_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
# WebHDFS that did not answer is asked again after so long.
_WEB_PAUSE_S: Final = 30.0
_FENCE_S_MAX: Final = 60.0
_CLOSING_S_MAX: Final = 10.0
_FENCE_PAUSE_S: Final = (0.02, 0.5)
# The library's own 15 tries of up to 15 s each would hold a caller up for three minutes.
_BOUNDED_WAITS: Final = {
    "dfs.client.failover.max.attempts": "8",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "3000",
    "dfs.client.socket-timeout": "30000",
}
_OWN_OPTIONS: Final = frozenset(
    ("webhdfs", "config_dir", "kerberos_principal", "kerberos_keytab", "kerberos_cache")
)
_HINTS: Final = (
    ("SafeModeException", "the NameNode is in safe mode: wait until it has left it"),
    ("AccessControlException", "permission denied: check owner, mode and HADOOP_USER_NAME"),
    ("Permission denied", "permission denied: check owner, mode and HADOOP_USER_NAME"),
    ("QuotaExceeded", "the quota of the directory is used up: raise it or free space"),
    ("could only be written to 0", "no DataNode takes the block: are they up, and not full?"),
    ("could only be replicated to 0", "no DataNode takes the block: are they up, and not full?"),
    ("NotEnoughReplicas", "no DataNode takes the block: are they up, and not full?"),
    ("DataTransferError", "no DataNode takes the block: are they up, and not full?"),
    ("All DataNodes failed", "no DataNode answers for the block: are they up?"),
    ("StandbyException", "every NameNode that was asked is on standby"),
    (
        "Connection refused",
        "a server does not answer: check the address, and that NameNode and DataNodes run",
    ),
    ("timed out", "there was no answer in time: check the network and the NameNode"),
    ("failed to lookup address", "the host name is not known: check the URL"),
    ("authenti", "the NameNode refuses this identity: check the Kerberos ticket"),
)


_guard: Final = ForkGuard("HDFS")


class HdfsStorage(Storage):
    """Files below one directory of HDFS.

    Args:
        url: ``hdfs://namenode:8020/path``, or ``hdfs://nameservice/path`` with HADOOP_CONF_DIR.
        options: properties of Hadoop by their names (``dfs.ha.namenodes.ns``), and our own:
            ``webhdfs`` (an address such as ``http://namenode:9870``, or ``off``), ``config_dir``,
            ``kerberos_principal``, ``kerberos_keytab``, ``kerberos_cache``.
    """

    is_durable = True
    fences = True
    # The library has no hflush, which "os" would be.
    levels = MappingProxyType(
        {
            "disk": "a power cut of every DataNode that holds it: an append returns after hsync",
            "memory": "nothing: an append returns before the event is written",
        }
    )

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})
        scheme, _, rest = url.partition("://")
        authority, _, path = rest.partition("/")
        if scheme != "hdfs" or not authority:
            raise InvalidRequestError(
                f"an HDFS URL names a NameNode or nameservice: hdfs://namenode:8020/path. url={url}"
            )
        if unknown := [n for n in self._options if "." not in n and n not in _OWN_OPTIONS]:
            raise InvalidRequestError(
                f"no such option of HDFS: {', '.join(sorted(unknown))}. Known are "
                f"{', '.join(sorted(_OWN_OPTIONS))}, and Hadoop's own properties"
            )
        self._root = posixpath.normpath(f"/{path}")
        self.url = f"hdfs://{authority}{self._root}".rstrip("/")
        self._authority = authority
        self._site = site_values(self._options.get("config_dir"))
        given = {n: str(v) for n, v in self._options.items() if n not in _OWN_OPTIONS}
        self._configuration = {**_BOUNDED_WAITS, **given}
        for name in _BOUNDED_WAITS:
            self._configuration[name] = (
                given.get(name) or self._site.get(name) or _BOUNDED_WAITS[name]
            )
        self._client = self._open()
        _all.add(self)
        self._patience = Patience(float(self._configuration["dfs.client.socket-timeout"]) / 1000)
        self._site |= given
        self._web: WebHdfs | None = None
        self._ask_web_at_s = 0.0

    def _open(self) -> Any:
        try:
            return hdfs_native.Client(
                f"hdfs://{self._authority}",
                config=self._configuration,
                config_dir=self._options.get("config_dir"),
                kerberos_principal=self._options.get("kerberos_principal"),
                kerberos_keytab=self._options.get("kerberos_keytab"),
                kerberos_cache=self._options.get("kerberos_cache"),
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise InvalidRequestError(f"HDFS cannot be opened: {_first_line(error)}") from error

    def __reduce__(self) -> tuple[object, ...]:
        return HdfsStorage, (self.url, self._options)

    def __repr__(self) -> str:
        return f"HdfsStorage({self.url!r})"

    @property
    def reads_open_files(self) -> bool:  # type: ignore[override]
        """Whether WebHDFS is there to read the end of open files."""
        return self._open_web() is not None

    def _open_web(self) -> WebHdfs | None:
        wanted = self._options.get("webhdfs") or os.environ.get("FILESTREAM_WEBHDFS", "")
        now_s = time.monotonic()
        if self._web is None and wanted != "off" and now_s >= self._ask_web_at_s:
            addresses = [wanted] if wanted else web_addresses(self._authority, self._site)
            web = WebHdfs(addresses)
            if web.is_there():
                self._web = web
            else:
                self._ask_web_at_s = time.monotonic() + _WEB_PAUSE_S
                logger.warning(
                    "WebHDFS does not answer at %s: files are read once they are closed",
                    ", ".join(addresses),
                )
        return self._web

    def _ask(self, name: str, *arguments: object, **more: object) -> Any:
        """A call of the client, with bounded patience."""
        method = getattr(self._client, name)
        return self._patience.call(lambda: method(*arguments, **more))

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, check_key(key)) if key else self._root

    @contextlib.contextmanager
    def _translated(self, what: str, key: str) -> Iterator[None]:
        _guard.use()
        try:
            yield
        except FilestreamError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise _translate(error, what, self.url_of(key)) from error

    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """See ``Storage``; the NameNode's log makes every name durable."""
        del durable_name
        with self._translated("create", key):
            return _HdfsAppender(
                self._create(self._path(key)),
                self.url_of(key),
                self._patience,
                lambda: self.fence(key),
            )

    def _create(self, path: str) -> Any:
        folder = posixpath.dirname(path)
        options = hdfs_native.WriteOptions(permission=_FILE_MODE, create_parent=False)
        try:
            return self._ask("create", path, options)
        except FileNotFoundError:
            self._ask("mkdirs", folder, _DIRECTORY_MODE, create_parent=True)
            return self._ask("create", path, options)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See ``Storage``: written and closed aside, then renamed, which replaces nothing."""
        path = self._path(key)
        with self._translated("create", key):
            if self._info(path) is not None:
                raise FileExistsError(path)
            # The name begins with a dot: not part of a stream, whenever this process dies.
            staged = posixpath.join(posixpath.dirname(path), f".put-{secrets.token_hex(8)}")
            file = self._create(staged)
            try:
                self._patience.call(lambda: _write_and_close(file, data))
            except BaseException:
                _never_let_go(file)
                self._try_delete(staged)
                raise
            try:
                self._ask("rename", staged, path)
            except (OSError, RuntimeError):
                self._try_delete(staged)
                # Its answer may have been lost, and then the file is ours all the same.
                if self._read_closed(path, 0, len(data) + 1) != data:
                    raise

    def _try_delete(self, path: str) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._ask("delete", path)

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``; opens the file anew each time, so the end is never stale."""
        path = self._path(key)
        with self._translated("read", key):
            data = self._patience.call(lambda: self._read_closed(path, position, size))
            if len(data) >= size:
                return data
            web = self._open_web()
            at = position + len(data)
            if web is None or self._ask("get_file_info", path).length <= at:
                return data
            return data + web.read(path, at, size - len(data))

    def _read_closed(self, path: str, position: int, size: int) -> bytes:
        file = self._client.read(path)
        wanted = min(size, len(file) - position)
        return bytes(file.read_range(position, wanted)) if wanted > 0 else b""

    def size(self, key: str) -> int:
        """See ``Storage``: what can be read of it now."""
        path = self._path(key)
        with self._translated("look at", key):
            if self._open_web() is not None:
                return int(self._ask("get_file_info", path).length)
            return len(self._ask("read", path))

    def exists(self, key: str) -> bool:
        """See ``Storage``."""
        with self._translated("look at", key):
            info = self._info(self._path(key))
        return info is not None and not info.isdir

    def _info(self, path: str) -> Any | None:
        try:
            return self._ask("get_file_info", path)
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Sequence[Entry]:
        """See ``Storage``."""
        path = self._path(prefix)
        with self._translated("list", prefix):
            try:
                found = self._patience.call(lambda: list(self._client.list_status(path)))
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [
            Entry(posixpath.basename(status.path), status.isdir)
            for status in found
            if posixpath.normpath(status.path) != path
        ]

    def delete(self, key: str) -> None:
        """See ``Storage``."""
        with self._translated("delete", key), contextlib.suppress(FileNotFoundError):
            self._ask("delete", self._path(key))

    def delete_tree(self, prefix: str) -> None:
        """See ``Storage``."""
        with self._translated("delete", prefix), contextlib.suppress(FileNotFoundError):
            self._ask("delete", self._path(prefix), recursive=True)

    def remove_if_empty(self, prefix: str) -> None:
        """See ``Storage``."""
        with contextlib.suppress(OSError, RuntimeError):
            self._ask("delete", self._path(prefix))

    def fence(self, key: str) -> None:
        """See ``Storage``: takes the lease away from whoever has it."""
        until_s = time.monotonic() + _FENCE_S_MAX
        pause_s, pause_s_max = _FENCE_PAUSE_S
        with self._translated("fence", key):
            while True:
                try:
                    if self._ask("recover_lease", self._path(key)):
                        return
                except FileNotFoundError:
                    return
                if time.monotonic() > until_s:
                    raise UnavailableError(
                        "the lease of a dead writer's file was not recovered in time: are the "
                        f"DataNodes of its last block up? url={self.url_of(key)}"
                    )
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, pause_s_max)


class _HdfsAppender(Appender):
    def __init__(
        self, file: Any, url: str, patience: Patience, recover: Callable[[], None]
    ) -> None:
        self._file = file
        self._url = url
        self._patience = patience
        # Has the NameNode close the file when we cannot.
        self._recover = recover
        self._process = os.getpid()
        self._has_failed = False
        _all.add(self)

    def write(self, data: bytes) -> None:
        with self._failing("write"):
            file = self._file
            self._patience.call(lambda: file.write(data))

    def sync(self) -> None:
        with self._failing("sync"):
            self._patience.call(self._file.hsync)

    def write_and_sync(self, data: bytes) -> None:
        with self._failing("write"):
            file = self._file
            self._patience.call(lambda: _write_and_sync(file, data))

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        _guard.use()
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            self._has_failed = True
            failure = _translate(error, what, self._url)
            if isinstance(failure, NotFoundError):
                # Removed while we had it: with its generation, for one. Whoever writes must look.
                failure = UnavailableError(f"the file was removed while it was written. {failure}")
            raise failure from error

    def close(self) -> None:
        file, self._file = self._file, _CLOSED
        if file is _CLOSED:
            return
        if self._has_failed or self._process != os.getpid():
            # In a forked child it is the parent's.
            _never_let_go(file)
        else:
            _close_soon(file, self._url, self._patience, self._recover)


def _never_let_go(file: object) -> None:
    """Keep a broken file for as long as the process lives.

    To close it, or to let it go, asks the NameNode again and again, for a quarter of a minute and
    more, and holds all threads of the interpreter up meanwhile. The file is closed by whoever fences
    it, or by the NameNode when this process is gone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(file))


# Whatever has a client or a file of the library.
_all: Final["weakref.WeakSet[HdfsStorage | _HdfsAppender]"] = weakref.WeakSet()


def _keep_those_of_parent() -> None:
    """In a forked child: to let go of one waits for ever, for threads that only the parent has. The
    collector of garbage does so at any moment, also with what was garbage already.
    """
    for one in list(_all):
        _never_let_go(one._client if isinstance(one, HdfsStorage) else one._file)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_those_of_parent)


def _write_and_sync(file: Any, data: bytes) -> None:
    file.write(data)
    file.hsync()


def _write_and_close(file: Any, data: bytes) -> None:
    _write_and_sync(file, data)
    file.close()


class _ClosedFile:
    """What is left of an appender after ``close``."""

    def write(self, data: bytes) -> None:
        raise ValueError("the file is closed")

    def hsync(self) -> None:
        raise ValueError("the file is closed")


_CLOSED: Final = _ClosedFile()


# Files that are being closed; free when it is done.
_closing: Final[set[threading.Lock]] = set()


def _close_soon(file: Any, url: str, patience: Patience, recover: Callable[[], None]) -> None:
    _closing.difference_update([done for done in list(_closing) if not done.locked()])
    _closing.add(patience.later(lambda: _close(file, url, patience, recover)))


def _close(file: Any, url: str, patience: Patience, recover: Callable[[], None]) -> None:
    try:
        patience.call(file.close)
    except Exception as error:
        # Nothing is lost, what matters was synced. But the last block of a file that is not closed
        # cannot be read when its DataNodes have restarted.
        logger.info("file was not closed, recovering it: %s url=%s", _first_line(error), url)
        _never_let_go(file)
        try:
            recover()
        except FilestreamError as failure:
            logger.warning("file could not be closed: %s", failure)


def _wait_for_closing() -> None:
    """At the end of the interpreter: a file that is not closed stays open until its lease is over."""
    until_s = time.monotonic() + _CLOSING_S_MAX
    for done in list(_closing):
        done.acquire(timeout=max(0.0, until_s - time.monotonic()))


def _forget_closing() -> None:
    _closing.clear()


atexit.register(_wait_for_closing)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_closing)


def _translate(error: Exception, what: str, url: str) -> FilestreamError:
    text = str(error)
    if isinstance(error, FileNotFoundError) or "FileNotFoundException" in text:
        return NotFoundError(f"there is no such file. url={url}")
    if isinstance(error, FileExistsError) or re.search(
        r"FileAlreadyExists|AlreadyBeingCreated|already the current lease holder", text
    ):
        return ConflictError(f"the file exists already. url={url}")
    if isinstance(error, NotADirectoryError | IsADirectoryError) or re.search(
        r"ParentNotDirectory|is not a directory|is a directory|PathIsNotDirectory", text
    ):
        return InvalidRequestError(
            f"cannot {what}: a file stands where a directory should, or the reverse. url={url}"
        )
    if re.search(r"(?i)erasure", text):
        return InvalidRequestError(
            f"cannot {what}: the directory is erasure-coded, and HDFS syncs no such file: choose "
            f"another, or 'hdfs ec -setPolicy -replicate' on this one. url={url}"
        )
    hint = next((hint for word, hint in _HINTS if word in text), "see what it said")
    return UnavailableError(f"cannot {what}: {hint}. said={_first_line(error)!r} url={url}")


def _first_line(error: BaseException) -> str:
    """Without the server's stack trace."""
    text = str(error).split("\\n\\tat ")[0].split("\n")[0]
    return text[:300]
