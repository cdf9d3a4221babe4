"""Claims where no kernel and no server watches over them: a document with a lease, renewed in time.

The holder writes its name and, every third of the lease, that it is alive. Who finds a document that
was not renewed for the lease and as much again takes it over by compare-and-set, which only one can; so
does, at once, who knows that the holder's process on this machine is dead. The holder trusts a claim
for three quarters of the lease from the moment it last *asked* to renew (its own clock, which counts
while the machine sleeps); a renewal that meets another's name has lost it.

Assumption: the wall clocks of two machines differ by less than a lease. Where they do not, two
processes may believe in one claim for a moment, so what a claim guards is guarded by the store
too: by files that are created once, by compare-and-set, by a fence.
"""

import json
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Final, Protocol

from filestream.clock import Clock, SystemClock, since_boot_s
from filestream.coordination.base import Document
from filestream.coordination.process import is_known_dead, own_process
from filestream.errors import ConflictError, FilestreamError, UnavailableError
from filestream.storage.base import Lock

__all__ = ["LEASE_S", "Documents", "LeasedClaims"]

logger = logging.getLogger(__name__)

LEASE_S: Final = 30.0
_RENEWALS_PER_LEASE: Final = 3
_TRUSTED_SHARE: Final = 0.75
_CLAIMS: Final = "_claims"


class Documents(Protocol):
    """What of a property store claims are made of."""

    def get(self, name: str) -> Document:
        """See ``PropertyStore``."""
        ...

    def compare_and_set(self, name: str, value: bytes, *, version: int) -> Document:
        """See ``PropertyStore``."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        ...


class LeasedClaims:
    """The claims of one property store; safe to use from many threads.

    Starts a daemon thread, ``filestream-claims``, while something is held.

    Args:
        documents: where they are kept, below ``_claims``.
        lease_s: how long one lasts without being renewed.
        clock: the wall clock that is written down for others.
    """

    def __init__(
        self, documents: Documents, lease_s: float = LEASE_S, clock: Clock | None = None
    ) -> None:
        self._documents = documents
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._mutex = threading.Lock()
        self._held: dict[str, _Claim] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        _all.add(self)

    def claim(self, name: str) -> Lock:
        """See ``PropertyStore``."""
        document = self._documents.get(f"{_CLAIMS}/{name}")
        if document.version and not self._is_free(document.value):
            raise ConflictError(f"another living process holds this name. name={name}")
        token = secrets.token_hex(8)
        asked_s = since_boot_s()
        # A conflict here is another claimant who was faster.
        try:
            made = self._documents.compare_and_set(
                f"{_CLAIMS}/{name}", self._value(token), version=document.version
            )
        except UnavailableError:
            made = self._documents.get(f"{_CLAIMS}/{name}")
            if not _is_of(made, token):
                raise
        claim = _Claim(self, name, token, made.version, asked_s, os.getpid())
        with self._mutex:
            self._held[token] = claim
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="filestream-claims", daemon=True
                )
                self._thread.start()
        return claim

    def holders(self, prefix: str) -> Sequence[str]:
        """See ``PropertyStore``."""
        place = f"{_CLAIMS}/{prefix}"
        found = []
        for name in self._documents.list(place):
            document = self._documents.get(name)
            if document.version and not self._is_free(document.value):
                found.append(name.removeprefix(f"{_CLAIMS}/"))
        return sorted(found)

    def is_trusted(self, asked_s: float) -> bool:
        """Whether a claim that was renewed then is still ours without a look."""
        return since_boot_s() - asked_s < self._lease_s * _TRUSTED_SHARE

    def release(self, claim: "_Claim") -> None:
        """Say that the name is free, if it is still ours."""
        with self._mutex:
            if self._held.pop(claim.token, None) is None:
                return
        with claim.mutex:
            try:
                document = self._documents.get(f"{_CLAIMS}/{claim.name}")
                if _is_of(document, claim.token):
                    claim.version = document.version
                    self._documents.compare_and_set(
                        f"{_CLAIMS}/{claim.name}", b"{}", version=claim.version
                    )
            except FilestreamError as error:
                logger.debug("a claim was not given back: %s %s", claim.name, error)

    def forget_parent(self) -> None:
        """In a forked child: the claims and the thread are the parent's."""
        self._mutex = threading.Lock()
        self._held = {}
        self._thread = None

    def _value(self, token: str) -> bytes:
        value = {
            "holder": token,
            "process": own_process(),
            "renewed_ms": self._clock.now_ms(),
            "lease_ms": int(self._lease_s * 1000),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    def _is_free(self, value: bytes) -> bool:
        try:
            raw = json.loads(value)
            if "holder" not in raw:
                return True
            until_ms = int(raw["renewed_ms"]) + 2 * int(raw["lease_ms"])
            process = str(raw["process"])
        except (ValueError, KeyError, TypeError):
            # A document that cannot be read was never a claim that somebody counts on.
            logger.warning("a claim is damaged, and taken for free: %.100r", value)
            return True
        return until_ms < self._clock.now_ms() or is_known_dead(process)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._lease_s / _RENEWALS_PER_LEASE)
            with self._mutex:
                held = list(self._held.values())
                if not held:
                    self._thread = None
                    return
            for claim in held:
                self._renew(claim)

    def _renew(self, claim: "_Claim") -> None:
        with claim.mutex:
            if claim.is_closed or claim.is_lost:
                return
            asked_s = since_boot_s()
            try:
                made = self._documents.compare_and_set(
                    f"{_CLAIMS}/{claim.name}", self._value(claim.token), version=claim.version
                )
            except ConflictError:
                self._look_whose(claim, asked_s)
            except Exception as error:
                # It runs out by itself if this goes on.
                logger.warning("a claim was not renewed: %s %s", claim.name, error)
            else:
                # Nobody else's name came in between, so it was ours all the time.
                claim.version, claim.asked_s = made.version, asked_s

    def _look_whose(self, claim: "_Claim", asked_s: float) -> None:
        """Somebody set the document: another, or we, and the answer was lost?"""
        try:
            document = self._documents.get(f"{_CLAIMS}/{claim.name}")
        except FilestreamError as error:
            logger.warning("a claim was not renewed: %s %s", claim.name, error)
            return
        if _is_of(document, claim.token):
            claim.version, claim.asked_s = document.version, asked_s
        else:
            claim.is_lost = True
            logger.warning("a claim was lost to another process: %s", claim.name)


def _is_of(document: Document, token: str) -> bool:
    try:
        return bool(json.loads(document.value).get("holder") == token)
    except (ValueError, AttributeError):
        return False


class _Claim(Lock):
    """``mutex`` guards the version: a renewal and the release must not cross."""

    def __init__(
        self,
        claims: LeasedClaims,
        name: str,
        token: str,
        version: int,
        asked_s: float,
        process: int,
    ) -> None:
        self.name = name
        self.token = token
        self.version = version
        self.asked_s = asked_s
        self.is_lost = False
        self.is_closed = False
        self.mutex = threading.Lock()
        self._claims = claims
        self._process = process

    @property
    def is_held(self) -> bool:
        if self.is_closed or self.is_lost:
            return False
        return self._claims.is_trusted(self.asked_s)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self._process == os.getpid():
                self._claims.release(self)


_all: "weakref.WeakSet[LeasedClaims]" = weakref.WeakSet()


def _forget_claims_of_parent() -> None:
    for claims in list(_all):
        claims.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_claims_of_parent)
