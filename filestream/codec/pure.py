"""The decode loops in plain Python: bytes to events, and bytes to Arrow columns.

The loops are shaped for the interpreter: one slice per body, one join per column, no call per event where
it can be helped. A byte-at-a-time loop that suits a compiler is 2 to 16 times slower here. In E3
an event also carries its ``timestamp_delta_ms`` behind body and headers.

Rule: whatever the bytes say, nothing is kept of a block that fails, and memory stays proportional to
the bytes given.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from google_crc32c import extend as _extend

from filestream.codec.primitives import need, read_headers, read_signed
from filestream.errors import CorruptDataError, InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "ColumnDecoder", "crc32c_range", "decode_events"]

# The columns that a decoder can fill, in the order in which finish() returns them.
COLUMNS: Final = ("timestamp", "body", "headers", "position", "index")

# Zig-zag size of a body from which on a view is cheaper than a slice.
_LONG_BODY: Final = 4096
# Arrow's offsets have 32 bits.
_OFFSET_MAX: Final = 2**31 - 1


def crc32c_range(data: bytes, start: int, stop: int, crc: int = 0) -> int:
    """``crc32c(data[start:stop], crc)``."""
    return int(_extend(crc, data[start:stop]))


def decode_events(
    data: bytes, start: int, stop: int, *, has_delta: bool
) -> list[tuple[int, bytes, dict[str, str | None]]]:
    """Events of one block as ``(timestamp_delta_ms, body, headers)``.

    Raises:
        CorruptDataError: the payload does not end exactly behind an event.
    """
    events: list[tuple[int, bytes, dict[str, str | None]]] = []
    append = events.append
    at, delta = start, 0
    try:
        while at < stop:
            size = data[at]
            at += 1
            if size > 127:
                size, at = need(read_signed(data, at - 1, stop))
                size <<= 1
            if size & 1 or size < 0:
                raise CorruptDataError("a body has a negative size.")
            end = at + (size >> 1)
            if end >= stop:
                raise CorruptDataError("an event runs over the end of its block.")
            body = data[at:end]
            if data[end] == 0:
                headers: dict[str, str | None] = {}
                at = end + 1
            else:
                found = _short_map(data, end, stop)
                if found is None:
                    raise CorruptDataError("an event runs over the end of its block.")
                headers, at = found
            if has_delta:
                last, (delta, at) = delta, need(read_signed(data, at, stop))
                if delta < last:
                    raise CorruptDataError("timestamps of a block decrease.")
            append((delta, body, headers))
    except IndexError as error:
        raise CorruptDataError("an event runs over the end of its block.") from error
    return events


def _short_headers(data: bytes, at: int, names: list[bytes], values: list[bytes | None]) -> int:
    """The usual map: one block of fewer than 64 pairs of texts shorter than 64 bytes.

    Adds raw names and values; returns the position behind it, or -1 when the map is of another
    kind, and then what was added must be dropped. May read past the block, but not past ``data``.
    """
    count = data[at]
    at += 1
    if count == 0:
        return at
    if count & 1 or count > 127:
        return -1
    for _ in range(count >> 1):
        size = data[at]
        if size & 1 or size > 127:
            return -1
        end = at + 1 + (size >> 1)
        names.append(data[at + 1 : end])
        branch = data[end]
        if branch == 2:
            values.append(None)
            at = end + 1
            continue
        size = data[end + 1]
        if branch or size & 1 or size > 127:
            return -1
        at = end + 2 + (size >> 1)
        values.append(data[end + 2 : at])
    return at + 1 if data[at] == 0 else -1


def _short_map(data: bytes, at: int, stop: int) -> tuple[dict[str, str | None], int] | None:
    """``read_headers``, fast for the usual map; never past ``stop``."""
    names: list[bytes] = []
    values: list[bytes | None] = []
    try:
        end = _short_headers(data, at, names, values)
        if 0 < end <= stop:
            headers = {
                name.decode(): None if value is None else value.decode()
                for name, value in zip(names, values, strict=True)
            }
            if len(headers) == len(names):
                return headers, end
    except (IndexError, UnicodeDecodeError):
        pass  # The careful reader says what is wrong.
    return read_headers(data, at, stop)


class ColumnDecoder:
    """Collects the events of blocks as Arrow columns; not thread-safe.

    Args:
        timestamp, body, headers, position, index: which columns are wanted; the others cost
            nothing but the walk over their bytes.
        rows: events expected in one batch; only a hint.
        size_bytes: body bytes expected in one batch; only a hint.
    """

    def __init__(
        self,
        *,
        timestamp: bool = True,
        body: bool = True,
        headers: bool = False,
        position: bool = False,
        index: bool = False,
        rows: int = 0,
        size_bytes: int = 0,
    ) -> None:
        del rows, size_bytes
        self._wanted = (timestamp, body, headers, position, index)
        self._reset()

    def _reset(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self._timestamps: list[int] = []
        self._bodies: list[bytes | memoryview] = []
        self._header_counts: list[int] = []
        self._names: list[bytes] = []
        self._values: list[bytes | None] = []
        self._positions: list[int] = []
        self._indexes: list[int] = []

    def add(
        self,
        data: bytes,
        start: int,
        stop: int,
        event_count: int,
        timestamp_ms: int,
        position: int,
        has_delta: bool,
    ) -> int:
        """Decode the events in ``data[start:stop]``; returns how many there were.

        Args:
            event_count: as the block header says; -1 when it says nothing (E1, E2).
            timestamp_ms: of the block.
            position: of the block in its file.
            has_delta: events carry a timestamp delta (E3).

        Raises:
            CorruptDataError: nothing of the block was kept.
        """
        if self.size_bytes + stop - start > _OFFSET_MAX:
            raise InvalidRequestError(
                "a record batch holds 2 GiB at the most: ask for smaller ones."
            )
        _, _, wants_headers, wants_position, wants_index = self._wanted
        if wants_headers:
            count = self._add_with_headers(data, start, stop, timestamp_ms, has_delta)
        else:
            count = self._add_plain(data, start, stop, timestamp_ms, has_delta)
        if event_count not in (-1, count):
            self._drop(count)
            raise CorruptDataError(
                f"a block holds another number of events than it says. said={event_count}"
            )
        if wants_position:
            self._positions += [position] * count
        if wants_index:
            self._indexes += range(count)
        self.rows += count
        self.size_bytes += stop - start
        return count

    def _drop(self, count: int) -> None:
        """Forget the last ``count`` events of a block that failed."""
        del self._timestamps[self.rows :]
        del self._bodies[self.rows :]
        if self._wanted[2]:
            pairs = sum(self._header_counts[self.rows :])
            del self._header_counts[self.rows :]
            if pairs:
                del self._names[-pairs:]
                del self._values[-pairs:]
        assert count >= 0

    def _add_plain(  # noqa: C901, PLR0915 - one loop, because a call costs more than its work
        self,
        data: bytes,
        start: int,
        stop: int,
        timestamp_ms: int,
        has_delta: bool,
    ) -> int:
        """The fast loop: one slice a body, headers only stepped over."""
        bodies = self._bodies
        append = bodies.append
        deltas: list[int] = []
        append_delta = deltas.append
        before = len(bodies)
        view = memoryview(data)
        at, delta = start, 0
        try:
            while at < stop:
                size = data[at]
                at += 1
                if size > 127:
                    more = data[at]
                    at += 1
                    if more < 128:
                        size = size & 127 | more << 7
                    else:
                        size, at = need(read_signed(data, at - 2, stop))
                        size <<= 1
                if size & 1 or size < 0:
                    raise CorruptDataError("a body has a negative size.")
                end = at + (size >> 1)
                # A long body is copied once, when the column is joined, not here already.
                append(data[at:end] if size < _LONG_BODY else view[at:end])
                if data[end] == 0:
                    at = end + 1
                else:
                    found = read_headers(data, end, stop)
                    if found is None:
                        raise CorruptDataError("an event runs over the end of its block.")
                    at = found[1]
                if has_delta:
                    # Nearly every delta is the one before: zero bytes to think about.
                    byte = data[at]
                    if byte < 128 and not byte & 1:
                        byte >>= 1
                        at += 1
                    else:
                        byte, at = need(read_signed(data, at, stop))
                    if byte < delta:
                        raise CorruptDataError("timestamps of a block decrease.")
                    delta = byte
                append_delta(delta)
            if at != stop:
                raise CorruptDataError("an event runs over the end of its block.")
        except (IndexError, CorruptDataError) as error:
            del bodies[before:]
            if isinstance(error, CorruptDataError):
                raise
            raise CorruptDataError("an event runs over the end of its block.") from error
        if self._wanted[0]:
            self._timestamps += [timestamp_ms + delta for delta in deltas]
        return len(deltas)

    def _add_with_headers(  # noqa: C901, PLR0915 - one loop, as above
        self,
        data: bytes,
        start: int,
        stop: int,
        timestamp_ms: int,
        has_delta: bool,
    ) -> int:
        """The same with headers kept: raw bytes of the usual maps, checked when they are joined."""
        names, values, counts = self._names, self._values, self._header_counts
        bodies = self._bodies
        before = len(bodies), len(names), len(counts)
        at, delta = start, 0
        stamps: list[int] = []
        try:
            while at < stop:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = need(read_signed(data, at - 1, stop))
                    size <<= 1
                if size & 1 or size < 0:
                    raise CorruptDataError("a body has a negative size.")
                end = at + (size >> 1)
                bodies.append(data[at:end])
                pairs = len(names)
                try:
                    at = _short_headers(data, end, names, values)
                except IndexError:
                    at = -1
                added = len(names) - pairs
                if at < 0 or at > stop or (added > 1 and _has_doubles(names, added)):
                    del names[pairs:], values[pairs:]
                    at = self._take_headers(data, end, stop)
                counts.append(len(names) - pairs)
                if has_delta:
                    byte = data[at]
                    if byte < 128 and not byte & 1:
                        byte >>= 1
                        at += 1
                    else:
                        byte, at = need(read_signed(data, at, stop))
                    if byte < delta:
                        raise CorruptDataError("timestamps of a block decrease.")
                    delta = byte
                stamps.append(timestamp_ms + delta)
            if at != stop:
                raise CorruptDataError("an event runs over the end of its block.")
            _check_texts(names[before[1] :])
            _check_texts([value for value in values[before[1] :] if value is not None])
        except (IndexError, CorruptDataError) as error:
            del bodies[before[0] :]
            del names[before[1] :], values[before[1] :], counts[before[2] :]
            if isinstance(error, CorruptDataError):
                raise
            raise CorruptDataError("an event runs over the end of its block.") from error
        self._timestamps += stamps
        return len(stamps)

    def _take_headers(self, data: bytes, at: int, stop: int) -> int:
        """The unusual map, read with care; returns the position behind it."""
        found = read_headers(data, at, stop)
        if found is None:
            raise CorruptDataError("an event runs over the end of its block.")
        self._names += [name.encode() for name in found[0]]
        self._values += [None if v is None else v.encode() for v in found[0].values()]
        return found[1]

    def finish(self) -> "list[pa.Array]":
        """The wanted columns in the order of ``COLUMNS``, and a fresh start.

        ``timestamp`` is ``timestamp[us, UTC]``, ``body`` ``binary``, ``headers``
        ``map<string, string>`` with nullable values, ``position`` ``int64``, ``index`` ``int32``.
        """
        import pyarrow as pa

        wants_timestamp, wants_body, wants_headers, wants_position, wants_index = self._wanted
        columns: list[pa.Array] = []
        if wants_timestamp:
            columns.append(
                pa.array([t * 1000 for t in self._timestamps], pa.timestamp("us", "UTC"))
            )
        if wants_body:
            columns.append(_binary_array(self._bodies))
        if wants_headers:
            offsets = pa.array(accumulate(self._header_counts, initial=0), pa.int32())
            # Checked text already: only the type is another.
            names = _binary_array(self._names).view(pa.string())
            values = pa.array(self._values, pa.binary()).view(pa.string())
            columns.append(pa.MapArray.from_arrays(offsets, names, values))
        if wants_position:
            columns.append(pa.array(self._positions, pa.int64()))
        if wants_index:
            columns.append(pa.array(self._indexes, pa.int32()))
        self._reset()
        return columns


def _has_doubles(names: list[bytes], count: int) -> bool:
    """Whether the last ``count`` names are not all different."""
    if count == 2:
        return names[-1] == names[-2]
    return len(set(names[-count:])) < count


def _check_texts(texts: Sequence[bytes]) -> None:
    """All at once where all is ASCII; one by one otherwise, for a joint may hide a cut letter."""
    if b"".join(texts).isascii():
        return
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError("a header is not UTF-8.") from error


def _binary_array(bodies: Sequence[bytes | memoryview]) -> "pa.Array":
    from array import array

    import pyarrow as pa

    # One join and one running sum beat pa.array(list of bytes), which looks at every object.
    offsets = array("i", accumulate(map(len, bodies), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(bodies))]
    return pa.Array.from_buffers(pa.binary(), len(bodies), buffers)
