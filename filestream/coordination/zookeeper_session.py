"""One connection of this process to ZooKeeper: where, as whom, with what patience.

Every call is bounded in time: what the server does not answer within the patience is
``UnavailableError``. A session that ZooKeeper has declared dead takes all claims with it; ``epoch``
counts these deaths, so that whoever holds a claim of an earlier one knows.

This room and those above it in ``coordination/`` are the only ones that know kazoo.
"""

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from filestream.errors import FilestreamError, InvalidRequestError, UnavailableError
from filestream.storage.base import Lock
from filestream.units import parse_duration_ms

__all__ = ["UNKNOWN", "ZooKeeperAddress", "ZooKeeperSession", "close_sessions", "session_of"]

logger = logging.getLogger(__name__)
# What it has to say is said here in our words, once.
_kazoo_logger: Final = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.CRITICAL)

Shared = TypeVar("Shared")

_TIMEOUT_S: Final = 10.0
_RETRY_PAUSE_S: Final = 0.05
# The connection may be back in a moment; nothing was decided, or the caller finds out what was.
_PASSING: Final = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
    KazooTimeoutError,
)
_REFUSED: Final = (NoAuthError, AuthFailedError, InvalidACLError)
_ANSWERS: Final = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
# The answer of a call that may have been carried out, and may not.
UNKNOWN: Final = object()


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """What ``zk://host:2181,host2:2181/chroot?timeout=10s`` says, and what the environment adds.

    Attributes:
        hosts: as kazoo takes them.
        root: path below which everything is kept.
        timeout_s: of the session, and how long a call may take; the server may shorten the former.
        tls: for ``zks://``.
        auth: ``user:password`` for the digest scheme, from ``FILESTREAM_ZK_AUTH``. What is created
            then belongs to this user alone.
        ca, certificate, key, key_password: files of ``FILESTREAM_ZK_CA``, ``_CERTIFICATE``, ``_KEY``,
            and the password of the last.
    """

    hosts: str
    root: str = ""
    timeout_s: float = _TIMEOUT_S
    tls: bool = False
    auth: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> "ZooKeeperAddress":
        """The address in a stream's description, with the secrets of this process.

        Raises:
            InvalidRequestError: no such address, or one that carries a secret.
        """
        form = "write zk://host:2181,host2:2181/path?timeout=10s, or zks:// for TLS"
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise InvalidRequestError(f"no address of ZooKeeper: {form}.") from error
        if "@" in parts.netloc:
            # A stream's description is read by everybody.
            raise InvalidRequestError(
                "the address of ZooKeeper carries a password: put it into FILESTREAM_ZK_AUTH."
            )
        root = parts.path.rstrip("/")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        timeout = options.pop("timeout", None)
        names = root.split("/")[1:]
        if (
            parts.scheme not in ("zk", "zks")
            or not parts.netloc
            or options
            or any(name in ("", ".", "..") for name in names)
            or names[:1] == ["zookeeper"]
        ):
            raise InvalidRequestError(f"no address of ZooKeeper: {text!r:.200}; {form}.")
        for host in parts.netloc.split(","):
            name, _, port = host.rpartition(":")
            is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
            if not (name and is_port) and (not host or ":" in host):
                raise InvalidRequestError(f"no host and port: {host!r:.100}; {form}.")
        timeout_s = parse_duration_ms(timeout) / 1000 if timeout else _TIMEOUT_S
        if not 0.5 <= timeout_s <= 600:
            raise InvalidRequestError(f"timeout must be 0.5s to 10m. timeout={timeout}")
        auth = environment.get("FILESTREAM_ZK_AUTH")
        if auth is not None and ":" not in auth:
            raise InvalidRequestError("FILESTREAM_ZK_AUTH must be user:password.")
        return cls(
            parts.netloc,
            root,
            timeout_s,
            parts.scheme == "zks",
            auth,
            environment.get("FILESTREAM_ZK_CA"),
            environment.get("FILESTREAM_ZK_CERTIFICATE"),
            environment.get("FILESTREAM_ZK_KEY"),
            environment.get("FILESTREAM_ZK_KEY_PASSWORD"),
        )


class ZooKeeperSession:
    """Connects when first used; safe to use from many threads. Starts kazoo's threads.

    Attributes:
        epoch: how many sessions have died; only grows.
        is_closed: for good; nothing is connected again.
    """

    def __init__(self, address: ZooKeeperAddress) -> None:
        self.address = address
        self.epoch = 0
        # Claims by path, as far as somebody in this process holds them; under the lock.
        self.held: dict[str, Lock] = {}
        self.claiming = threading.RLock()
        self._process = os.getpid()
        self.is_closed = False
        self._starting = threading.Lock()
        self._is_started = False
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._shared: object = None
        auth = address.auth
        acl = None
        if auth is not None:
            user, _, password = auth.partition(":")
            acl = [make_digest_acl(user, password, all=True)]
        self._client = KazooClient(
            hosts=address.hosts,
            timeout=address.timeout_s,
            auth_data=[("digest", auth)] if auth is not None else None,
            default_acl=acl,
            use_ssl=address.tls,
            ca=address.ca,
            certfile=address.certificate,
            keyfile=address.key,
            keyfile_password=address.key_password,
            check_hostname=address.tls and address.ca is not None,
            connection_retry=KazooRetry(
                max_tries=-1, delay=_RETRY_PAUSE_S, backoff=2, max_delay=1.0, max_jitter=0.4
            ),
            logger=_kazoo_logger,
        )
        self._client.add_listener(self._learn)

    @property
    def timeout_s(self) -> float:
        """Of the session, as the server granted it."""
        return float(self._client._session_timeout) / 1000  # kazoo has no public name for it.

    @property
    def id(self) -> int:
        """Of the session; 0 before there is one."""
        identity: tuple[int, bytes] | None = self._client.client_id  # pyright: ignore[reportAssignmentType]
        return identity[0] if identity else 0

    def is_ours(self, epoch: int) -> bool:
        """Whether a session is still the same, and still that of this process."""
        return epoch == self.epoch and self._process == os.getpid()

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` whenever the connection comes or goes; it must not block."""
        self._listeners.append(tell)

    def off_change(self, tell: Callable[[], None]) -> None:
        """Do not call it any more."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(tell)

    def shared(self, make: Callable[[], Shared]) -> Shared:
        """The one thing that all users of the session share; made by the first."""
        with self._changed:
            if self._shared is None:
                self._shared = make()
            return cast("Shared", self._shared)

    def call(self, what: str, ask: Callable[[KazooClient], Any]) -> Any:
        """Ask until the server has answered; only for what may be done twice.

        Args:
            what: is done, for the error.
            ask: begins a call of kazoo's ``..._async`` and returns it. The server's own answers (no
                node, bad version) come out as kazoo raises them.

        Raises:
            UnavailableError: the server did not answer in time, or refused this user.
        """
        until_s = time.monotonic() + self.address.timeout_s
        while True:
            try:
                return self._answer(ask, until_s)
            except _PASSING as error:
                self._wait_until_connected(what, until_s, error)
            except _REFUSED as error:
                raise self._refusal(what) from error
            except KazooException as error:
                raise self._translated(what, error) from error

    def call_once(self, what: str, ask: Callable[[KazooClient], Any]) -> Any:
        """Ask once, for what must not be done twice; ``UNKNOWN`` when the answer was lost.

        Raises:
            UnavailableError: it was not done: there was no connection, or this user may not.
        """
        until_s = time.monotonic() + self.address.timeout_s
        while True:
            try:
                self._start(until_s)
                if self._client.connected:
                    break
                raise ConnectionLoss
            except _PASSING as error:
                self._wait_until_connected(what, until_s, error)
        try:
            return self._answer(ask, until_s)
        except _PASSING:
            return UNKNOWN
        except _REFUSED as error:
            raise self._refusal(what) from error
        except KazooException as error:
            raise self._translated(what, error) from error

    def close(self) -> None:
        """End the session, and with it every claim; may be called twice."""
        with self._starting:
            self.is_closed = True
            if self._is_started and self._process == os.getpid():
                self._is_started = False
                with contextlib.suppress(KazooException, KazooTimeoutError):
                    self._client.stop()
                    self._client.close()

    def _start(self, until_s: float) -> None:
        if self._process != os.getpid():
            raise UnavailableError(
                "the connection to ZooKeeper is the parent's: open the stream again"
            )
        if self.is_closed:
            raise UnavailableError("the connection to ZooKeeper was closed: open the stream again")
        if not self._is_started:
            self._connect(until_s)

    def _connect(self, until_s: float) -> None:
        with self._starting:
            if self._is_started:
                return
            if self.is_closed:
                raise UnavailableError("the connection to ZooKeeper was closed")
            left_s = max(0.1, until_s - time.monotonic())
            try:
                self._client.start(timeout=left_s)  # pyright: ignore[reportArgumentType]
            except _PASSING as error:
                # kazoo has given up and would have to be started anew.
                raise self._failure("connect") from error
            self._is_started = True

    def _answer(self, ask: Callable[[KazooClient], Any], until_s: float) -> Any:
        self._start(until_s)
        if not self._client.connected:
            # kazoo would queue the call, and wait for the connection without end.
            raise ConnectionLoss
        return ask(self._client).get(timeout=max(0.0, until_s - time.monotonic()))

    def _wait_until_connected(self, what: str, until_s: float, error: Exception) -> None:
        with self._changed:
            self._changed.wait(_RETRY_PAUSE_S)
            while not (self._client.connected or not self._is_started):
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, 0.5))
        if time.monotonic() >= until_s:
            raise self._failure(what) from error

    def _learn(self, state: str) -> None:
        """On kazoo's thread."""
        if state == KazooState.LOST:
            self.epoch += 1
            if not self.is_closed:
                logger.warning("the session with ZooKeeper was lost: %s", self.address.hosts)
        with self._changed:
            self._changed.notify_all()
        for tell in list(self._listeners):
            tell()

    def _translated(self, what: str, error: KazooException) -> Exception:
        """The server's answers to a question come out as they are; anything else is ours to say."""
        if isinstance(error, _ANSWERS):
            answer: Exception = error
            return answer
        return UnavailableError(
            f"ZooKeeper failed: cannot {what}: {type(error).__name__} {error}. "
            f"hosts={self.address.hosts}"
        )

    def _refusal(self, what: str) -> FilestreamError:
        return UnavailableError(
            f"ZooKeeper does not allow to {what}: check FILESTREAM_ZK_AUTH. "
            f"hosts={self.address.hosts} root={self.address.root or '/'}"
        )

    def _failure(self, what: str) -> FilestreamError:
        return UnavailableError(
            f"ZooKeeper did not answer: cannot {what}. Is it running, and is the address right? "
            f"hosts={self.address.hosts} waited_s={self.address.timeout_s:g}"
        )


_sessions: Final[dict[tuple[int, ZooKeeperAddress], ZooKeeperSession]] = {}


def session_of(address: ZooKeeperAddress) -> ZooKeeperSession:
    """The one session of this process with an address; a forked child has its own."""
    key = (os.getpid(), address)
    session = _sessions.get(key)
    if session is None or session.is_closed:
        _sessions.pop(key, None)
        # A thread that lost the race throws its session away before it was ever connected.
        session = _sessions.setdefault(key, ZooKeeperSession(address))
        atexit.unregister(session.close)
        atexit.register(session.close)
    return session


def close_sessions() -> None:
    """End all sessions of this process; streams that were opened with them must be opened again."""
    for session in list(_sessions.values()):
        session.close()
    _sessions.clear()
