"""What a writer accepts: bodies, headers and timestamps, checked on the caller's thread.

A bad event fails here, before it can share a batch with a good one.
"""

from collections.abc import Iterable, Mapping
from typing import Final, cast

from filestream.blocks import TIMESTAMP_MS_MAX
from filestream.clock import Clock
from filestream.codec import EncodedEvent, encode_bodies, encode_event
from filestream.errors import InvalidRequestError
from filestream.settings import StreamProperties

__all__ = ["Body", "Headers", "Intake"]

Body = bytes | bytearray | memoryview
Headers = Mapping[str, str | None] | None

_HEADERS_SIZE_BYTES_MAX: Final = 64 << 10


class Intake:
    """Checks and encodes events by the properties of one stream; safe for threads."""

    def __init__(self, properties: StreamProperties, clock: Clock) -> None:
        self._properties = properties
        self._clock = clock

    def encode(self, body: Body, headers: Headers) -> EncodedEvent:
        """One event.

        Raises:
            InvalidRequestError: a bad body or header, or one that is too large.
        """
        event = encode_event(body, headers)
        most = self._properties.event_size_bytes_max
        # A memoryview's len() counts items, which need not be bytes.
        if len(event) > most and memoryview(body).nbytes > most:
            raise InvalidRequestError(
                f"the event is too large: raise the stream's event_size, or split it. "
                f"size={len(event)} most={most}"
            )
        if headers:
            size = len(event) - memoryview(body).nbytes
            most = min(_HEADERS_SIZE_BYTES_MAX, self._properties.block_size_bytes_max // 2)
            if size > most:
                raise InvalidRequestError(f"headers are too large. size={size} most={most}")
        return event

    def encode_many(self, events: Iterable[Body | tuple[Body, Headers]]) -> list[EncodedEvent]:
        """Events in order; an error in one of them refuses all."""
        encode = self.encode
        try:
            given = list(events)
            # The usual case, in which nothing but a size can be wrong.
            if set(map(type, given)) == {bytes}:
                bodies = cast("list[bytes]", given)
                longest = max(map(len, bodies))
                if longest <= self._properties.event_size_bytes_max:
                    return encode_bodies(bodies, longest)
            return [encode(*e) if isinstance(e, tuple) else encode(e, None) for e in given]
        except TypeError as error:
            raise InvalidRequestError(
                f"events must be bodies, or pairs of body and headers. {error!s:.200}"
            ) from error

    def check_timestamp(self, timestamp_ms: object) -> int:
        """The same, when a partition can hold it and ttl has not passed it."""
        if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
            raise InvalidRequestError(
                f"timestamp_ms must be whole milliseconds. timestamp_ms={timestamp_ms!r:.100}"
            )
        if not 0 < timestamp_ms <= TIMESTAMP_MS_MAX:
            raise InvalidRequestError(
                "no partition can hold this timestamp; it must lie between 1970 and 9999. "
                f"timestamp_ms={timestamp_ms}"
            )
        ttl_ms = self._properties.ttl_ms
        if ttl_ms and timestamp_ms < self._clock.now_ms() - ttl_ms:
            raise InvalidRequestError(
                "the timestamp is older than the stream's ttl: the event would never be read. "
                f"timestamp_ms={timestamp_ms} ttl_ms={ttl_ms}"
            )
        return timestamp_ms

    def check_timestamps(
        self, timestamps_ms: Iterable[int] | int | None, count: int
    ) -> list[int | None] | None:
        """One for each of ``count`` events; None when the clock is to give them."""
        if timestamps_ms is None:
            return None
        if not isinstance(timestamps_ms, Iterable):
            same: list[int | None] = [self.check_timestamp(timestamps_ms)]
            return same * count
        stamps: list[int | None] = [self.check_timestamp(stamp) for stamp in timestamps_ms]
        if len(stamps) != count:
            raise InvalidRequestError(
                f"there must be one timestamp for each event. events={count} stamps={len(stamps)}"
            )
        return stamps
