"""A watch for stores that cannot tell of changes: it looks again and again."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from filestream.coordination.base import Document, PropertyStore, Watch
from filestream.errors import FilestreamError

__all__ = ["PollingWatch"]

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.1


class PollingWatch(Watch):
    """Starts a thread, ``filestream-watch-<name>``, which ``close`` joins."""

    def __init__(
        self,
        store: PropertyStore,
        name: str,
        tell: Callable[[Document], None],
        *,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._name = name
        self._tell = tell
        self._is_closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"filestream-watch-{name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """See ``Watch``."""
        self._is_closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        told = -1
        while not self._is_closed.is_set():
            try:
                if told < 0 or not self._store.is_current(self._name, told):
                    document = self._store.get(self._name)
                    # A document that was deleted and made again may have the same version, but
                    # then its absence was seen, or nothing happened for us.
                    if document.version != told:
                        told = document.version
                        self._tell(document)
            except FilestreamError as error:
                logger.warning("cannot look at %s, trying again: %s", self._name, error)
            except Exception:
                logger.exception("whoever watches %s failed", self._name)
            self._is_closed.wait(self._interval_s)
