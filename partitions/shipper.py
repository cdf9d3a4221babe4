"""Brings the segments of a journal to the store, in order, on a thread of its own.

A segment is put as it is, or with an end when its writer gave it up, under the key that its offsets name;
only then is it removed from the journal. Whoever dies in between puts the same once more, and finds it
there. A store that fails is tried again for ever; one that has other bytes under the key has another
writer, and what is left stays in the journal.
"""

import logging
import random
import threading
from typing import Final

from filestream.clock import Clock
from filestream.errors import (
    ConflictError,
    FilestreamError,
    NotFoundError,
    UnavailableError,
)
from filestream.partitions.generations import Generation, Generations
from filestream.partitions.journal import Journal
from filestream.partitions.layout import Partition, Segment
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.segment_heads import SegmentHeads
from filestream.segment_encoder import SegmentEncoder
from filestream.segment_reader import parse_header
from filestream.segment_repair import whole_segment
from filestream.settings import StreamProperties

__all__ = ["Shipper", "Shipping"]

logger = logging.getLogger(__name__)

_PAUSE_S: Final = (0.1, 10.0)
# Of unshipped segments; writers wait, and then fail, until there is room again.
_BACKLOG_BYTES_MAX: Final = 1 << 30
_ROOM_S_MAX: Final = 30.0
_FINISH_S_MAX: Final = 60.0
_HEAD_SIZE_BYTES: Final = 64 << 10


class Shipping:
    """How one segment gets from a journal to the store.

    Args:
        storage: of the stream.
        properties: of the stream, for the head of a segment that has none.
    """

    def __init__(
        self,
        storage: PackedStorage,
        generations: Generations,
        stream_name: str,
        properties: StreamProperties,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._generations = generations
        self._stream_name = stream_name
        self._properties = properties
        self._clock = clock
        self._generation: Generation | None = None

    def ship_all(self, journal: Journal) -> None:
        """Bring everything to the store.

        Raises:
            FilestreamError: as ``ship``.
        """
        segments = journal.segments()
        if segments:
            logger.info("bringing %d segments to the store: %s", len(segments), journal.url)
        for segment in segments:
            self.ship(journal, segment)

    def ship(self, journal: Journal, segment: Segment) -> None:
        """Bring one segment to the store, and remove it from the journal.

        Raises:
            UnavailableError: the store failed; try again.
            ConflictError: another process wrote under this writer id.
            CorruptDataError: the journal is damaged.
            NotFoundError: the stream was deleted.
        """
        if self._is_truncated(segment):
            journal.remove(segment)
            return
        try:
            data = whole_segment(journal.storage, segment.data_key) or self._empty(segment)
        except NotFoundError:
            return  # It was brought there already.
        try:
            self._storage.put_if_absent(segment.data_key, data)
        except ConflictError:
            self._check_ours(segment, data)
        else:
            if self._storage.was_packed(segment, self._clock.now_ms()):
                self._check_ours(segment, data)
        journal.remove(segment)

    def _is_truncated(self, segment: Segment) -> bool:
        known = self._generation
        if known is None or not self._generations.is_current(known):
            known = self._generation = self._generations.current()
        return segment.partition.generation < known.number

    def _check_ours(self, segment: Segment, data: bytes) -> None:
        """What stands there came from us: an earlier try, or one that another process went on with."""
        there = self._storage.read(segment.data_key, 0, _HEAD_SIZE_BYTES)
        if _file_id(there) != _file_id(data):
            raise ConflictError(
                f"another process wrote as {segment.writer_id!r}, so what is in the journal cannot "
                f"go there. url={self._storage.url_of(segment.data_key)}"
            )

    def _empty(self, segment: Segment) -> bytes:
        """In place of a segment that died at birth; the same at every try."""
        heads = SegmentHeads(self._stream_name, self._properties, random.Random(segment.key))
        encoder = SegmentEncoder(heads.head(segment), heads.options)
        return encoder.whole(segment.partition.start_ms)


class Shipper:
    """Starts a daemon thread, ``filestream-shipper-<writer id>``, when there is something to ship.

    What is to be shipped is what lies in the journal, so that no interrupt can make it forget a segment.

    Args:
        shipping: does it.
        journal: that is held by this process.
    """

    def __init__(self, shipping: Shipping, journal: Journal) -> None:
        self._shipping = shipping
        self._journal = journal
        # Guards all below, and tells of each change.
        self._change = threading.Condition()
        self._growing: Segment | None = None
        # How many were closed so far.
        self._closed = 0
        self._is_due = False
        self._size = 0
        self._failure: FilestreamError | None = None
        self._trouble: FilestreamError | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    def grows(self, segment: Segment | None) -> None:
        """The segment to which something may be added; all others in the journal are to be shipped."""
        with self._change:
            before, self._growing = self._growing, segment
            if before is None or before == segment:
                return
            self._closed += 1
            self._size += self._journal.size(before)
            self._is_due = True
            self._start()
            self._change.notify_all()

    def wait_for_room(self) -> None:
        """Return when the journal is not too large.

        Raises:
            ConflictError: another process writes under this id; nothing can be shipped any more.
            UnavailableError: the store is too far behind.
        """
        with self._change:
            if self._failure is None and self._size <= _BACKLOG_BYTES_MAX:
                return
            self._start()
            self._change.wait_for(
                lambda: self._failure or self._size <= _BACKLOG_BYTES_MAX, _ROOM_S_MAX
            )
            self._raise_failure()
            if self._size > _BACKLOG_BYTES_MAX:
                raise UnavailableError(
                    f"the journal is full: the store is behind by {self._size} bytes. "
                    f"journal={self._journal.url}"
                ) from self._trouble

    def finish(self) -> None:
        """Return when everything is in the store, and end the thread.

        Raises:
            UnavailableError: it is not; the journal keeps it.
            ConflictError: another process writes under this id; the journal keeps the rest.
        """
        try:
            with self._change:
                self._change.wait_for(
                    lambda: self._failure or not self._is_due or not self._is_running,
                    _FINISH_S_MAX,
                )
                self._raise_failure()
                is_behind = self._is_due and self._is_running
        finally:
            with self._change:
                self._is_over = True
                self._change.notify_all()
        try:
            if is_behind:
                raise self._trouble or UnavailableError("the store is slow.")
            # Nobody else ships any more: what is left, whatever kept it back, goes now.
            if self._thread is not None:
                self._thread.join()
            self._shipping.ship_all(self._journal)
        except UnavailableError as error:
            raise UnavailableError(
                "the store did not take everything; the rest is safe in the journal: open the writer "
                f"here again to bring it there. journal={self._journal.url} {error}"
            ) from error

    def forget_parent(self) -> None:
        """In a forked child: the journal and the thread are the parent's."""
        self._change = threading.Condition()
        self._is_over = True

    @property
    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _start(self) -> None:
        if self._is_running or self._is_over:
            return
        thread = threading.Thread(
            target=self._run, name=f"filestream-shipper-{self._journal.writer_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("no thread can be started, so segments wait in the journal: %s", error)
        else:
            self._thread = thread

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure

    def _run(self) -> None:
        pause_s = _PAUSE_S[0]
        while self._wait_for_work():
            try:
                self._ship_what_is_closed()
                pause_s = _PAUSE_S[0]
            except UnavailableError as error:
                logger.warning("trying again to bring segments to the store: %s", error)
                with self._change:
                    self._trouble, self._is_due = error, True
                    self._change.wait_for(lambda: self._is_over, pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S[1])
            except Exception as error:
                if isinstance(error, FilestreamError):
                    logger.error("segments stay in the journal %s: %s", self._journal.url, error)  # noqa: TRY400
                else:
                    logger.exception("segments stay in the journal %s", self._journal.url)
                    error = UnavailableError(f"the thread that ships failed: {error!r}")
                with self._change:
                    self._failure = error
                    self._change.notify_all()
                return

    def _wait_for_work(self) -> bool:
        """Whether there is something to do; False when all is over."""
        with self._change:
            self._change.wait_for(lambda: self._is_due or self._is_over)
            return not self._is_over

    def _ship_what_is_closed(self) -> None:
        with self._change:
            growing, closed = self._growing, self._closed
        skipped: set[Partition] = set()
        for segment in self._journal.segments():
            # Listed before or after, the one that grows was known to grow before it was there. What
            # was closed meanwhile comes in the next round, and so does all that is behind it.
            if segment in (growing, self._growing) or segment.partition in skipped:
                skipped.add(segment.partition)
                continue
            if self._is_over:
                return
            size = self._journal.size(segment)
            self._shipping.ship(self._journal, segment)
            with self._change:
                self._size = max(0, self._size - size)
                self._change.notify_all()
        with self._change:
            if self._closed == closed:
                self._is_due, self._size = False, 0
                self._change.notify_all()


def _file_id(head: bytes) -> str:
    header = parse_header(head)
    return header.properties.get("file.id", "") if header is not None else ""
