"""Object stores: S3 and whatever speaks its protocol, Google Cloud Storage, Azure; by ``obstore``.

Objects do not grow: each is put whole, and ``If-None-Match: *`` makes sure that it is put once. The
answer of a PUT may be lost although the object is there; so PUTs are not tried again below this
room, which reads the object back and knows its own bytes. What only reads is tried again below.

Rule: no credentials in any text. What the library says of a failure may quote a signed URL, so
only its kind, and what is left after scrubbing, goes into ours, and its traceback is not kept.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from filestream.errors import (
    ConflictError,
    FilestreamError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from filestream.storage.base import (
    JOURNAL_SURVIVES,
    Appender,
    Entry,
    ForkGuard,
    ReplacingStorage,
    check_key,
)

__all__ = ["ObjectStorage"]

# A PUT is tried again for so long; the last try may take as long as one request.
_PUT_S_MAX = 60.0
_PUT_PAUSE_S: Final = 0.1
_PUT_PAUSE_S_MAX: Final = 5.0
_CLIENT: Final = {"connect_timeout": "5s", "timeout": "30s"}
_READ_RETRIES: Final = {
    "max_retries": 5,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=3),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=20),
}
_NO_RETRIES: Final = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
_DELETED_AT_ONCE: Final = 500
_SECRETS: Final = re.compile(
    r"(?i)((?:[?&]|\b)(?:x-amz-[a-z-]*|sig|signature|token|secret[a-z_]*|password|authorization|"
    r"access_?key[a-z_]*|account_?key|sas)\s*[=:]\s*)[^\s&\",}]+"
)
_ANSWERED: Final = re.compile(r"(?:status code|status):? (\d{3})")
# Answers that another try, or a look whether the object is there after all, would not change.
_REFUSALS: Final = frozenset((400, 401, 403, 404, 405, 411, 413, 501))
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")


_client: Final = ForkGuard("an object store")


class ObjectStorage(ReplacingStorage):
    """Objects below one prefix of a bucket or container.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``.
        options: what obstore's stores take: ``endpoint``, ``region``, ``access_key_id``, ...; what
            is not given comes from the environment, as ``AWS_ACCESS_KEY_ID`` and its kin.
    """

    is_durable = True
    can_append = False
    levels = MappingProxyType(
        {
            "object": "what the store survives: an append returns after its answer to the whole object",
            "journal": JOURNAL_SURVIVES,
        }
    )

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self._options = dict(options or {})
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.strip("/").partition("/")
        if not bucket:
            raise InvalidRequestError(f"the URL names no bucket: write {scheme}://bucket/path")
        self.url = f"{scheme}://{bucket}/{prefix}" if prefix else f"{scheme}://{bucket}"
        self._bucket = f"{scheme}://{bucket}"
        self._prefix = f"{prefix}/" if prefix else ""
        self._reading = self._open(_READ_RETRIES)
        # "memory" is obstore's own store in memory: there is one, and nothing fails.
        self._putting = self._reading if scheme == "memory" else self._open(_NO_RETRIES)

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStorage, (self.url, self._options)

    def __repr__(self) -> str:
        return f"ObjectStorage({self.url!r})"

    def _open(self, retries: Mapping[str, object]) -> Any:
        if self._bucket.startswith("memory:"):
            return MemoryStore()
        # A plain endpoint is somebody's own server, or a test's; it was asked for by name.
        client = {**_CLIENT, "allow_http": True}
        # Its types know each store's options by name; ours come from the user.
        opening: Any = from_url
        try:
            return opening(
                self._bucket,
                config=self._options or None,
                client_options=client,
                retry_config=retries,
            )
        except (exceptions.BaseError, ValueError, TypeError) as error:
            raise InvalidRequestError(
                f"the store cannot be opened: {_scrubbed(error)} url={self.url}"
            ) from None

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    @contextlib.contextmanager
    def _translated(self, what: str, key: str) -> Iterator[None]:
        _client.use()
        try:
            yield
        except FilestreamError:
            raise
        except (exceptions.BaseError, OSError, ValueError, RuntimeError) as error:
            raise _translate(error, what, self.url_of(key)) from None

    def create(self, key: str, *, durable_name: bool = True) -> Appender:
        """See ``Storage``: objects do not grow."""
        del durable_name
        raise InvalidRequestError(f"objects do not grow: put them whole. url={self.url_of(key)}")

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See ``Storage``."""
        path = self._path(key)
        _client.use()
        until_s = time.monotonic() + _PUT_S_MAX
        pause_s = _PUT_PAUSE_S
        while True:
            try:
                obstore.put(self._putting, path, data, mode="create", use_multipart=False)
            except (exceptions.BaseError, OSError, ValueError, RuntimeError) as error:
                failure = _translate(error, "put", self.url_of(key))
                is_refused = _status(error) in _REFUSALS
            else:
                return
            if is_refused or not isinstance(failure, ConflictError | UnavailableError):
                raise failure from None
            # Was it us, and the answer got lost? Or has it gone wrong, and nothing is there?
            found = self._find(path, len(data))
            if found == data:
                return
            if found is not None:
                raise ConflictError(f"the file exists already. url={self.url_of(key)}") from None
            if time.monotonic() + pause_s > until_s:
                # Also after a conflict: nobody could say whose object it is.
                raise UnavailableError(str(failure)) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PUT_PAUSE_S_MAX)

    def _find(self, path: str, size: int) -> bytes | None:
        """What stands there, as far as it matters; None for nothing, or when nobody can say."""
        try:
            return bytes(obstore.get_range(self._reading, path, start=0, length=size + 1))
        except (exceptions.BaseError, OSError, ValueError, RuntimeError):
            return None

    def read(self, key: str, position: int, size: int) -> bytes:
        """See ``Storage``."""
        path = self._path(key)
        with self._translated("read", key):
            if size <= 0:
                obstore.head(self._reading, path)
                return b""
            try:
                found = obstore.get(
                    self._reading, path, options={"range": (position, position + size)}
                )
                return bytes(found.bytes())
            except exceptions.BaseError as error:
                # Behind the end a store says 416, or an error of its own; only its size tells.
                if isinstance(error, exceptions.NotFoundError):
                    raise
                if position < obstore.head(self._reading, path)["size"]:
                    raise
                return b""

    def size(self, key: str) -> int:
        """See ``Storage``."""
        with self._translated("look at", key):
            return int(obstore.head(self._reading, self._path(key))["size"])

    def exists(self, key: str) -> bool:
        """See ``Storage``."""
        try:
            self.size(key)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Sequence[Entry]:
        """See ``Storage``."""
        start = f"{self._path(prefix)}/" if prefix else self._prefix
        with self._translated("list", prefix):
            found = obstore.list_with_delimiter(self._reading, start or None)
        names = {Entry(path["path"][len(start) :], False) for path in found["objects"]}
        names |= {Entry(path.rstrip("/")[len(start) :], True) for path in found["common_prefixes"]}
        # An object that stands for the directory itself, as consoles make them, has no name in it.
        return [entry for entry in names if entry.name]

    def delete(self, key: str) -> None:
        """See ``Storage``."""
        with self._translated("delete", key), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._reading, self._path(key))

    def delete_tree(self, prefix: str) -> None:
        """See ``Storage``."""
        start = f"{self._path(prefix)}/" if prefix else self._prefix
        with self._translated("delete", prefix):
            for chunk in obstore.list(self._reading, start or None, chunk_size=_DELETED_AT_ONCE):
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._reading, [found["path"] for found in chunk])

    def get(self, key: str) -> tuple[bytes, str]:
        """See ``ReplacingStorage``."""
        with self._translated("read", key):
            found = obstore.get(self._reading, self._path(key))
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def replace(self, key: str, data: bytes, tag: str) -> None:
        """See ``ReplacingStorage``; the outcome of a failure is the caller's to find out."""
        try:
            with self._translated("replace", key):
                obstore.put(
                    self._putting,
                    self._path(key),
                    data,
                    mode={"e_tag": tag},
                    use_multipart=False,
                )
        except NotFoundError as error:
            raise ConflictError(f"the file is gone. url={self.url_of(key)}") from error

    def is_unchanged(self, key: str, tag: str) -> bool:
        """See ``ReplacingStorage``: one conditional GET."""
        try:
            with self._translated("read", key):
                found = obstore.get(self._reading, self._path(key), options={"if_none_match": tag})
                # A store that does not know the condition sends the object: compare its tag.
                return str(found.meta["e_tag"]) == tag
        except NotFoundError:
            return False
        except _NotModifiedError:
            return True


class _NotModifiedError(FilestreamError):
    """An answer, not a failure; never leaves this room."""


def _translate(error: BaseException, what: str, url: str) -> FilestreamError:
    text, status = _scrubbed(error), _status(error)
    if isinstance(error, exceptions.NotModifiedError):
        return _NotModifiedError(url)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return ConflictError(f"the file exists already, or was changed. url={url}")
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return NotFoundError(f"there is no such bucket: create it, or mend the URL. url={url}")
    if isinstance(error, FileNotFoundError | exceptions.NotFoundError):
        return NotFoundError(f"there is no such file. url={url}")
    if isinstance(
        error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
    ) or status in (401, 403):
        return UnavailableError(
            f"cannot {what}: the store refuses these credentials: check them, and what they may "
            f"do. said={_said(text, status)} url={url}"
        )
    if isinstance(error, exceptions.NotSupportedError):
        return InvalidRequestError(f"cannot {what}: the store does not offer this. url={url}")
    if status:
        return UnavailableError(
            f"cannot {what}: the store answered {_said(text, status)}. url={url}"
        )
    return UnavailableError(
        f"cannot {what}: the store does not answer: check the endpoint and the network. "
        f"said={text[:200]!r} url={url}"
    )


def _status(error: BaseException) -> int:
    """The status of the answer; 0 when there was none."""
    answered = _ANSWERED.search(str(error))
    return int(answered[1]) if answered else 0


def _said(text: str, status: int) -> str:
    code = _CODE.search(text)
    return f"{status} {code[1]}" if code else str(status or "no")


def _scrubbed(error: BaseException) -> str:
    """What the library says, in one line, without what may be a secret."""
    text = str(error).split("\n\n")[0].replace("\n", " ")
    return _SECRETS.sub(r"\1***", text)
