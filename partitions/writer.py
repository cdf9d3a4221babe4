"""The writer of a stream: one id, any number of threads and tasks.

Each call encodes its events on its own thread, so that a bad event fails there and nowhere else, and
brings them to the drain; the drain's leader hands all that is queued to the lane, which writes
and syncs once. A background thread (``filestream-writer-<id>``) leads for work that no thread waits
for, and rolls segments without traffic. It is started when first needed and joined by ``close``.
"""

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self

from filestream.clock import Clock
from filestream.coordination.base import PropertyStore
from filestream.errors import (
    FencedError,
    FilestreamError,
    InvalidRequestError,
    UnavailableError,
)
from filestream.partitions import open_writers
from filestream.partitions.appended import AppendedOffsets, Placed
from filestream.partitions.background import Background
from filestream.partitions.drain import Drain, Work
from filestream.partitions.file_lane import COMMIT_SIZE_BYTES
from filestream.partitions.flights import Flights
from filestream.partitions.generations import Generations
from filestream.partitions.intake import Body, Headers, Intake
from filestream.partitions.janitor import Janitor
from filestream.partitions.journal import Journals
from filestream.partitions.lane import Lane, LaneSite
from filestream.partitions.layout import Offset
from filestream.partitions.open_lane import claim_id, open_lane
from filestream.partitions.packed_storage import PackedStorage
from filestream.partitions.shipper import Shipping
from filestream.partitions.writer_ids import WriterClaim
from filestream.partitions.writer_work import Append, Control, may_fly
from filestream.settings import StreamProperties

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamWriter"]

logger = logging.getLogger(__name__)

_QUEUE_SIZE_BYTES: Final = 16 << 20
_CLOSED: Final = "the writer is closed: open another with stream.writer()"


class StreamWriter:
    """Appends to one stream; safe for threads, tasks and a mix of both. Use it with ``with``.

    Made by ``Stream.writer``. After a fork, the child must open its own.
    """

    def __init__(
        self,
        storage: PackedStorage,
        store: PropertyStore,
        *,
        stream_name: str,
        properties: StreamProperties,
        clock: Clock,
        chance: random.Random,
        journals: Journals,
        writer_id: str | None = None,
        takeover: bool = False,
        janitor: Janitor | None = None,
    ) -> None:
        self._url = storage.url
        self._clock = clock
        self._intake = Intake(properties, clock)
        generations = Generations(store, storage.url)
        shipping = Shipping(storage, generations, stream_name, properties, clock)
        self._claim = (
            WriterClaim(store, writer_id)
            if storage.can_append
            else claim_id(store, writer_id, journals, shipping.ship_all, takeover=takeover)
        )
        try:
            site = LaneSite(
                storage, generations, stream_name, self._claim, properties, clock, chance
            )
            # Only the leader of the drain calls it.
            self._lane: Lane = open_lane(site, store, journals, shipping)
        except BaseException:
            self._claim.close()
            raise
        self._drain = Drain(
            self._perform,
            batch_size_max=self._lane.batch_size_max,
            wake_background=lambda: self._background.wake(),
            pause_s=self._lane.pause_s if self._lane.can_fly else None,
            clock=clock,
        )
        self._background = Background(
            f"filestream-writer-{self.writer_id}", self._drain, self._lane, clock, self._look
        )
        self._flights = Flights(f"filestream-commit-{self.writer_id}")
        # Touched by one thread at a time: what became of events that nobody waited for.
        self._lost_count = 0
        self._lost_error: FilestreamError | None = None
        self._is_sealed = False
        self._closing = threading.Lock()
        self._is_closing = False
        self._janitor = None if janitor is None else janitor.start()
        open_writers.add(self)

    @property
    def writer_id(self) -> str:
        """Names this writer's files; another only if none was asked for, and the id was lost."""
        return self._claim.writer_id

    # -- appending ---------------------------------------------------------------------------

    def append(
        self, body: Body, headers: Headers = None, timestamp_ms: int | None = None
    ) -> Offset:
        """Append one event; returns when it is safe at the stream's acknowledgement level.

        Args:
            body: bytes; at most ``event_size``.
            headers: text to text or None.
            timestamp_ms: event time, 1 to the end of the year 9999; the clock when None. One
                that is up to 1 s older than the newest of the open segment is raised to it.

        Returns:
            Where the event stands.

        Raises:
            InvalidRequestError: bad body, header or timestamp; nothing was written.
            UnavailableError: the store failed. The event **may** be in the stream.
            NotFoundError: the stream was deleted.
            ConflictError: another process writes with this id.
            FencedError: the writer was made before a fork, by the parent.
        """
        event = self._intake.encode(body, headers)
        work = Append([event], self._intake.check_timestamps(timestamp_ms, 1), len(event))
        self._drain.run(work)
        return work.offset

    def append_many(
        self,
        events: Iterable[Body | tuple[Body, Headers]],
        timestamps_ms: Iterable[int] | int | None = None,
    ) -> AppendedOffsets:
        """Append events in order; returns when all are safe. Much faster than one by one.

        Not atomic: after an error some of them may be in the stream. Events with explicit
        timestamps are stored in the order of time.

        Args:
            events: bodies, or pairs of body and headers.
            timestamps_ms: one for all, or one each; the clock when None.

        Returns:
            The offset of each, in the order given.

        Raises:
            InvalidRequestError: a bad event; nothing was written.
            UnavailableError: as ``append``.
        """
        work = self._work(events, timestamps_ms)
        if work.events:
            self._drain.run(work)
        return work.offsets

    def append_nowait(
        self, body: Body, headers: Headers = None, timestamp_ms: int | None = None
    ) -> None:
        """Append one event soon; ``flush`` tells whether it is safe.

        Waits only while more than 16 MiB are queued.

        Raises:
            InvalidRequestError: as ``append``.
        """
        event = self._intake.encode(body, headers)
        stamp = None if timestamp_ms is None else self._intake.check_timestamp(timestamp_ms)

        def extend(work: Work) -> int:
            if not isinstance(work, Append) or not work.is_loose or work.size > COMMIT_SIZE_BYTES:
                return -1
            assert work.timestamps_ms is not None
            work.events.append(event)
            work.timestamps_ms.append(stamp)
            work.size += len(event)
            return len(event)

        if not self._drain.extend_last(extend):
            self._post(Append([event], [stamp], len(event), is_loose=True))
        if self._drain.queued_size > _QUEUE_SIZE_BYTES:
            self._drain.run(Control("pass"))

    def flush(self) -> None:
        """Return when everything appended so far is safe at the acknowledgement level.

        Raises:
            UnavailableError: events of ``append_nowait`` were lost since the last flush.
        """
        self._drain.run(Control("flush"))

    async def append_async(
        self, body: Body, headers: Headers = None, timestamp_ms: int | None = None
    ) -> Offset:
        """``append`` for tasks: many tasks share one sync, and none blocks the event loop."""
        event = self._intake.encode(body, headers)
        work = Append([event], self._intake.check_timestamps(timestamp_ms, 1), len(event))
        await self._run_async(work)
        return work.offset

    async def append_many_async(
        self,
        events: Iterable[Body | tuple[Body, Headers]],
        timestamps_ms: Iterable[int] | int | None = None,
    ) -> AppendedOffsets:
        """``append_many`` for tasks."""
        work = self._work(events, timestamps_ms)
        if work.events:
            await self._run_async(work)
        return work.offsets

    async def flush_async(self) -> None:
        """``flush`` for tasks."""
        await self._run_async(Control("flush"))

    def append_table(self, table: "pa.Table | pa.RecordBatch | object") -> AppendedOffsets:
        """Append the rows of Arrow data.

        Args:
            table: columns ``body`` (binary or string), and optionally ``headers`` (map or
                struct of strings) and ``timestamp`` (a timestamp, or integer milliseconds); any
                object with ``__arrow_c_stream__``. Other columns are refused: drop them.

        Raises:
            InvalidRequestError: a column is missing, of another type, or null where it must not be.
        """
        from filestream.partitions.columns import rows_of_table

        bodies, headers, stamps = rows_of_table(table)
        events = bodies if headers is None else list(zip(bodies, headers, strict=True))
        return self.append_many(events, stamps)

    # -- life --------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seal the open segment now; the next event begins another."""
        self._drain.run(Control("roll"))

    def close(self) -> None:
        """Write what is queued, seal the open segment, give the writer id back.

        Raises:
            UnavailableError: events of ``append_nowait`` were lost since the last flush.
        """
        with self._closing:
            if self._is_closing:
                return
            self._is_closing = True
        try:
            self._drain.run(Control("close"))
        except BaseException:
            if not self._is_sealed:
                # Interrupted before the step was done: the writer is open, and keeps its id.
                self._is_closing = False
                raise
            self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        self._background.stop()
        self._flights.close()
        if self._janitor is not None:
            self._janitor.close()
        self._claim.close()
        open_writers.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"StreamWriter({self._url!r}, writer_id={self.writer_id!r})"

    # -- on the caller's thread --------------------------------------------------------------

    def _work(
        self,
        events: Iterable[Body | tuple[Body, Headers]],
        timestamps_ms: Iterable[int] | int | None,
    ) -> Append:
        encoded = self._intake.encode_many(events)
        stamps = self._intake.check_timestamps(timestamps_ms, len(encoded))
        return Append(encoded, stamps, sum(map(len, encoded)))

    async def _run_async(self, work: Work) -> None:
        work.future = asyncio.get_running_loop().create_future()
        self._post(work)
        await work.future

    def _post(self, work: Work) -> None:
        """Leave work to the background thread, which must be alive for that."""
        self._drain.post(work)
        if not self._background.is_alive:
            self._background.wake()
            if self._background.has_no_thread:
                self._drain.fail_background(UnavailableError("no thread can be started."))

    # -- on the leader's thread --------------------------------------------------------------

    def _look(self) -> None:
        if not self._is_closing:
            self._drain.run(Control("look"))

    def _perform(self, batch: Sequence[Work]) -> bool:
        """Do a batch in order: runs of appends together, each control step by itself.

        Returns:
            Whether it was only begun.
        """
        if self._lane.can_fly and all(map(may_fly, batch)):
            return self._begin(batch)
        appends: list[Append] = []
        for work in batch:
            if isinstance(work, Append):
                appends.append(work)
                continue
            if appends:
                self._write(appends)
                appends = []
            assert isinstance(work, Control)
            try:
                self._control(work.what)
            except FilestreamError as error:
                work.error = error
        if appends:
            self._write(appends)
        return False

    def _begin(self, batch: Sequence[Work]) -> bool:
        """Let the appends of a batch fly; they are told when they have landed."""
        works = [work for work in batch if isinstance(work, Append)]
        if not works:
            return False
        batch = list(batch)
        try:
            self._check_unsealed()
            flight = self._lane.begin([(work.events, work.timestamps_ms) for work in works])
        except FilestreamError as error:
            self._fail(works, error)
            return False

        def fly() -> None:
            try:
                self._land(works, flight.finish)
            except BaseException as error:
                # Nobody stands above this thread to see it.
                self._fail(works, UnavailableError(f"the writing thread failed: {error!r}"))
                raise
            finally:
                flight.land()
                self._drain.complete(batch)

        flight.is_sent = True
        self._flights.send(fly)
        return True

    def _write(self, works: Sequence[Append]) -> None:
        batches = [(work.events, work.timestamps_ms) for work in works]

        def write() -> Placed:
            self._check_unsealed()
            return self._lane.write(batches)

        self._land(works, write)
        if not self._background.is_there and not self._background.has_no_thread:
            self._background.wake()  # A segment is open: somebody must roll it in time.

    def _land(self, works: Sequence[Append], write: Callable[[], Placed]) -> None:
        try:
            placed = write()
        except FilestreamError as error:
            self._fail(works, error)
        except Exception as error:
            # Whoever waits must hear of it, whatever it was.
            logger.exception("a commit failed in a way that it should not")
            self._fail(works, UnavailableError(f"the writing thread failed: {error!r}"))
        else:
            start = 0
            for work in works:
                work.placed, work.start = placed, start
                start += len(work.events)

    def _check_unsealed(self) -> None:
        if self._is_sealed:
            raise InvalidRequestError(_CLOSED)

    def _fail(self, works: Sequence[Append], error: FilestreamError) -> None:
        for work in works:
            # An own exception for each thread: a traceback must not be shared.
            work.error = type(error)(str(error))
            work.error.__cause__ = error
            if work.is_loose:
                self._lost_error = error
                self._lost_count += len(work.events)

    def _control(self, what: str) -> None:
        if what == "look":
            self._flush()
            self._lane.look()
        elif what == "roll":
            self._flush()
            self._lane.seal("asked")
        elif what == "flush":
            self._flush()
            self._report_lost()
        elif what == "close":
            # First nothing more comes in, whatever happens then.
            self._drain.close(InvalidRequestError(_CLOSED))
            self._is_sealed = True
            self._flush()
            try:
                self._lane.seal("close")
            finally:
                try:
                    self._lane.close()
                finally:
                    self._report_lost()

    def _flush(self) -> None:
        try:
            self._lane.flush()
        except FilestreamError as error:
            self._lost_error = error
            self._lost_count += 1

    def _report_lost(self) -> None:
        error, count = self._lost_error, self._lost_count
        self._lost_error, self._lost_count = None, 0
        if error is not None:
            raise type(error)(f"events were lost that nobody waited for. count={count} {error}")

    def forget_parent(self) -> None:
        """In a forked child: the files, locks and threads are the parent's."""
        self._drain.forget_parent(
            FencedError("this writer belongs to the parent process: open another in the child")
        )
        self._background.forget_parent()
        self._closing = threading.Lock()
        self._is_closing = True
        if self._janitor is not None:
            self._janitor.forget()
        self._lane.forget_parent()
        self._flights.forget_parent()
        self._claim.close()
