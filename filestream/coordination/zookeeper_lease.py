"""What this process believes to be the version of a document, and until when it may believe it.

A writer asks after every sync whether its generation is still the current one. To ask ZooKeeper each
time would cost more than the sync, and would stop every writer while ZooKeeper restarts. So the
answer is kept, under a lease that both sides honour:

* The holder registers an ephemeral node before it asks, and believes an answer for ``lease_s`` from
  the moment it *asked* (its own clock, which counts while the machine sleeps; a process that was
  stopped sees the lease over when it wakes). After that it must ask again, and if nobody answers it
  knows nothing.
* Whoever changed the document (a truncation) waits until every holder that was registered has
  written the new version into its node, or is gone, or ``lease_s`` has passed. Then no process can
  be told the old version any more.

The lease is shorter than the session, so a node that ZooKeeper removed because it had not heard of
its owner belonged to a lease that is over. Assumption: two clocks differ in rate by less than the
quarter of the session that lies between.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError

from filestream.clock import since_boot_s
from filestream.coordination.zookeeper_session import ZooKeeperSession
from filestream.errors import FilestreamError, UnavailableError

__all__ = ["Leases"]

logger = logging.getLogger(__name__)

_LEASE_SHARE: Final = 0.75
_RENEWALS_PER_LEASE: Final = 4
# A document that nobody asked about for so many leases is let go.
_IDLE_LEASES: Final = 3
_SETTLE_PAUSE_S: Final = 0.01


class _Held:
    """What is believed of one document."""

    __slots__ = ("asked_s", "epoch", "node", "path", "version", "wanted_s")

    def __init__(self, path: str) -> None:
        self.path = path
        self.version = -1
        # The ephemeral node that says so.
        self.node = ""
        # When the last answer was asked for, and in which session.
        self.asked_s = float("-inf")
        self.epoch = -1
        # When somebody last wanted to know.
        self.wanted_s = 0.0


class Leases:
    """The leases of one process with one session; safe to use from many threads.

    Starts a daemon thread, ``filestream-zookeeper-leases``, while something is held.

    Args:
        version_of: asks ZooKeeper for the version of the document at a path, and calls the second
            argument when that changes.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        version_of: Callable[[str, Callable[[object], None]], int],
    ) -> None:
        self._session = session
        self._version_of = version_of
        self._held: dict[str, _Held] = {}
        # One renewal at a time; answers are read without it.
        self._renewing = threading.Lock()
        self._wake = threading.Condition()
        self._is_due = False
        self._thread: threading.Thread | None = None
        self._registered = 0
        session.on_change(self._nudge)

    @property
    def lease_s(self) -> float:
        """How long an answer is believed."""
        return self._session.timeout_s * _LEASE_SHARE

    def version(self, path: str) -> int:
        """The version of a document, at most ``lease_s`` old.

        Raises:
            UnavailableError: the lease is over and ZooKeeper does not answer.
        """
        held = self._held.get(path)
        now_s = since_boot_s()
        if held is not None:
            held.wanted_s = now_s
            if held.epoch == self._session.epoch and now_s - held.asked_s <= self.lease_s:
                return held.version
        return self._ask(path)

    def settle(self, path: str, version: int) -> None:
        """Return when no process holds an answer below ``version`` any more."""
        until_s = since_boot_s() + self._session.timeout_s
        with self._wake:
            held = self._held.get(path)
        if held is not None:
            self._renew(held)
        folder = _folder(path)
        while since_boot_s() < until_s:
            if not self._stragglers(folder, version):
                return
            with self._wake:
                self._wake.wait(_SETTLE_PAUSE_S)
        logger.info("waited for a whole lease: a holder of %s is silent", path)

    def _stragglers(self, folder: str, version: int) -> bool:
        """Whether a registered holder has not confirmed the version."""
        try:
            names = self._session.call("list leases", lambda c: c.get_children_async(folder))
        except NoNodeError:
            return False
        return any(self._is_behind(f"{folder}/{name}", version) for name in names)

    def _is_behind(self, node: str, version: int) -> bool:
        try:
            data, _ = self._session.call("read a lease", lambda c: c.get_async(node))
        except NoNodeError:
            return False
        return not data.isdigit() or int(data) < version

    def _ask(self, path: str) -> int:
        with self._wake:
            held = self._held.get(path)
            if held is None:
                held = self._held[path] = _Held(path)
            held.wanted_s = since_boot_s()
        self._renew(held)
        self._begin_thread()
        return held.version

    def _renew(self, held: _Held) -> None:
        """Register, then ask, then say what was heard."""
        with self._renewing:
            epoch = self._session.epoch
            if held.epoch != epoch:
                self._register(held)
            asked_s = since_boot_s()
            version = self._version_of(held.path, self._changed)
            if version != held.version or held.epoch != epoch:
                # Believed first, said then: once it is said, nobody here may answer the old one.
                held.version = version
                self._say(held, version)
            held.epoch = epoch
            held.asked_s = asked_s

    def _register(self, held: _Held) -> None:
        # A new name each time: a late deletion of the one before must not meet this one.
        self._registered += 1
        name = f"{self._session.id:x}-{id(self):x}-{self._registered}"
        held.node = f"{_folder(held.path)}/{name}"
        # Done twice after a lost answer, it is there already, and ours.
        with contextlib.suppress(NodeExistsError):
            try:
                self._session.call(
                    "register a lease",
                    lambda c: c.create_async(held.node, b"", ephemeral=True, makepath=True),
                )
            except NoNodeError as error:
                raise UnavailableError(
                    f"the stream is being deleted in ZooKeeper. path={held.path}"
                ) from error

    def _say(self, held: _Held, version: int) -> None:
        try:
            self._session.call(
                "confirm a lease", lambda c: c.set_async(held.node, b"%d" % max(version, 0))
            )
        except NoNodeError:
            # The session died in between; the next renewal registers again.
            held.epoch = -1

    def _changed(self, event: object) -> None:
        """On kazoo's thread: a document changed, or the connection did."""
        del event
        self._nudge()

    def _nudge(self) -> None:
        with self._wake:
            self._is_due = True
            self._wake.notify_all()

    def _begin_thread(self) -> None:
        with self._wake:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="filestream-zookeeper-leases", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._is_due:
                    self._wake.wait(self.lease_s / _RENEWALS_PER_LEASE)
                self._is_due = False
            self._forget_idle()
            with self._wake:
                held = list(self._held.values())
                if not held or self._session.is_closed:
                    self._thread = None
                    return
            for one in held:
                try:
                    self._renew(one)
                except (FilestreamError, KazooException) as error:
                    # The lease runs out by itself; whoever asks then is told.
                    logger.debug("a lease was not renewed: %s %s", one.path, error)

    def _forget_idle(self) -> None:
        """Let go of what nobody asks about."""
        if self._session.is_closed:
            return
        with self._renewing:
            idle_s = since_boot_s() - _IDLE_LEASES * self.lease_s
            with self._wake:
                idle = [held for held in self._held.values() if held.wanted_s < idle_s]
                for held in idle:
                    del self._held[held.path]
            for held in idle:
                self._end(held)

    def _end(self, held: _Held) -> None:
        try:
            self._session.call("end a lease", lambda c: c.delete_async(held.node))
        except (FilestreamError, KazooException) as error:
            logger.debug("a lease was not ended: %s %s", held.path, error)


def _folder(path: str) -> str:
    parent, _, name = path.rpartition("/")
    return f"{parent}/_leases/{name}"
