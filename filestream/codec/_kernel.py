# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""The codec's decode loop for a C compiler, written in Cython's pure mode.

It means exactly what ``filestream.codec.pure`` means and is never run interpreted: as plain
Python this shape would be 2 to 16 times slower than the pure module. Memory comes from pyarrow's
pool by address, so nothing here links against Arrow. The loops run without the GIL.

Rule: no byte outside ``start..stop`` is interpreted, no count is believed before it is compared
with the bytes that remain, and a block that fails leaves no row behind.
"""

import cython

if not cython.compiled:
    raise ImportError("the kernel was not compiled; the pure codec serves instead")

import ctypes

import google_crc32c._crc32c as _crc_module
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memmove

from filestream.codec.primitives import HEADERS_MAX as _HEADERS_MAX_OBJECT
from filestream.errors import CorruptDataError, InvalidRequestError

_OFFSET_MAX = cython.declare(cython.Py_ssize_t, 0x7FFFFFFF)
_HIGH_BITS = cython.declare(uint64_t, 0x8080808080808080)
_OK = cython.declare(cython.int, 0)
_NEEDS_SPACE = cython.declare(cython.int, 1)
_CUT = cython.declare(cython.int, 2)
_NEGATIVE_BODY = cython.declare(cython.int, 3)
_BAD_NUMBER = cython.declare(cython.int, 4)
_BAD_BRANCH = cython.declare(cython.int, 5)
_BAD_TEXT = cython.declare(cython.int, 6)
_DECREASING = cython.declare(cython.int, 7)
_WRONG_COUNT = cython.declare(cython.int, 8)
_TOO_MANY_HEADERS = cython.declare(cython.int, 9)
_HEADERS_MAX = cython.declare(cython.longlong, _HEADERS_MAX_OBJECT)

_MESSAGES = {
    2: "an event runs over the end of its block.",
    3: "a body has a negative size.",
    4: "a number is longer than ten bytes.",
    5: "a header has an unknown kind of value.",
    6: "a header is not UTF-8.",
    7: "timestamps of a block decrease.",
    8: "a block holds another number of events than it says.",
    9: "an event has too many headers.",
}

# google-crc32c's own C function, at the address it has in this process: its Python face takes
# only whole bytes objects, and a copy of each block costs more than the checksum itself.
_crc_extend = cython.declare(CrcExtend)
_crc_extend = cython.cast(
    CrcExtend,
    cython.cast(
        cython.size_t,
        ctypes.cast(ctypes.CDLL(_crc_module.__file__).crc32c_extend, ctypes.c_void_p).value,
    ),
)


def crc32c_range(
    data: bytes, start: cython.Py_ssize_t, stop: cython.Py_ssize_t, crc: cython.uint = 0
) -> int:
    """CRC-32C of ``data[start:stop]``, going on from ``crc``, without a copy."""
    if not 0 <= start <= stop <= len(data):
        raise IndexError("range lies outside the data")
    source: Source = cython.cast(Source, cython.cast(cython.p_char, data))
    result: uint32_t
    with cython.nogil:
        result = _crc_extend(crc, source + start, stop - start)
    return result


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_long(
    at: cython.pointer(Source), stop: Source, value: cython.pointer(int64_t)
) -> cython.int:
    """One zig-zag varint; moves ``at``."""
    p: Source = at[0]
    raw: uint64_t = 0
    shift: cython.int = 0
    byte: uint64_t
    while p < stop:
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return _BAD_NUMBER
        raw |= (byte & 127) << shift
        if byte < 128:
            at[0] = p
            value[0] = cython.cast(int64_t, raw >> 1) ^ -cython.cast(int64_t, raw & 1)
            return _OK
        shift += 7
        if shift > 63:
            return _BAD_NUMBER
    return _CUT


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_utf8(p: Source, stop: Source) -> cython.bint:
    """Strict UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF."""
    first: uint8_t
    more: cython.int
    low: uint8_t
    high: uint8_t
    word: uint64_t = 0
    # Nearly all headers are ASCII: eight letters at a time.
    while stop - p >= 8:
        memcpy(cython.address(word), p, 8)
        if word & _HIGH_BITS:
            break
        p += 8
    while p < stop:
        first = p[0]
        p += 1
        if first < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if stop - p < more or not (low <= p[0] <= high):
            return False
        p += 1
        while more > 1:
            if not (0x80 <= p[0] <= 0xBF):
                return False
            p += 1
            more -= 1
    return True


@cython.cclass
class _Memory:
    """A growing buffer from pyarrow's pool."""

    owner: object
    data: cython.p_uchar
    capacity: cython.Py_ssize_t

    def __init__(self, capacity: cython.Py_ssize_t) -> None:
        import pyarrow as pa

        self.owner = pa.allocate_buffer(max(capacity, 64), resizable=True)
        self.data = cython.cast(cython.p_uchar, cython.cast(cython.size_t, self.owner.address))
        self.capacity = self.owner.size

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, size: cython.Py_ssize_t) -> cython.int:
        if size > self.capacity:
            self.owner.resize(max(size, self.capacity * 2), shrink_to_fit=False)
            self.data = cython.cast(cython.p_uchar, cython.cast(cython.size_t, self.owner.address))
            self.capacity = self.owner.size
        return 0

    @cython.cfunc
    def take(self, size: cython.Py_ssize_t) -> object:
        # A batch much smaller than its buffer must not keep the whole buffer alive.
        self.owner.resize(size, shrink_to_fit=size < self.capacity // 2)
        return self.owner


@cython.cclass
class ColumnDecoder:
    """Collects the events of blocks as Arrow columns; see ``filestream.codec.pure``."""

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size_bytes = cython.declare(cython.Py_ssize_t, visibility="readonly")
    wants_timestamp: cython.bint
    wants_body: cython.bint
    wants_headers: cython.bint
    wants_position: cython.bint
    wants_index: cython.bint
    rows_hint: cython.Py_ssize_t
    size_hint: cython.Py_ssize_t
    timestamps: _Memory
    body_offsets: _Memory
    bodies: _Memory
    map_offsets: _Memory
    name_offsets: _Memory
    names: _Memory
    value_offsets: _Memory
    values: _Memory
    value_is_set: _Memory
    positions: _Memory
    indexes: _Memory
    body_size: cython.Py_ssize_t
    pairs: cython.Py_ssize_t
    names_size: cython.Py_ssize_t
    values_size: cython.Py_ssize_t
    nulls: cython.Py_ssize_t
    # Where the walk over a block stands, so that it can go on after memory grew.
    walk_at: Source
    walk_rows: cython.Py_ssize_t
    walk_delta: int64_t

    def __init__(
        self,
        *,
        timestamp: bool = True,
        body: bool = True,
        headers: bool = False,
        position: bool = False,
        index: bool = False,
        rows: int = 4096,
        size_bytes: int = 262144,
    ) -> None:
        self.wants_timestamp = timestamp
        self.wants_body = body
        self.wants_headers = headers
        self.wants_position = position
        self.wants_index = index
        self.rows_hint = rows
        self.size_hint = size_bytes
        self._reset()

    @cython.cfunc
    def _reset(self) -> object:
        rows: cython.Py_ssize_t = self.rows_hint
        if self.wants_timestamp:
            self.timestamps = _Memory(rows * 8)
        if self.wants_body:
            self.body_offsets = _Memory((rows + 1) * 4)
            self.bodies = _Memory(self.size_hint)
            cython.cast(cython.pointer(int32_t), self.body_offsets.data)[0] = 0
        if self.wants_headers:
            self.map_offsets = _Memory((rows + 1) * 4)
            self.name_offsets = _Memory(1024)
            self.names = _Memory(1024)
            self.value_offsets = _Memory(1024)
            self.values = _Memory(1024)
            self.value_is_set = _Memory(256)
            cython.cast(cython.pointer(int32_t), self.map_offsets.data)[0] = 0
            cython.cast(cython.pointer(int32_t), self.name_offsets.data)[0] = 0
            cython.cast(cython.pointer(int32_t), self.value_offsets.data)[0] = 0
        if self.wants_position:
            self.positions = _Memory(rows * 8)
        if self.wants_index:
            self.indexes = _Memory(rows * 4)
        self.rows = self.size_bytes = self.body_size = 0
        self.pairs = self.names_size = self.values_size = self.nulls = 0
        return None

    def add(
        self,
        data: bytes,
        start: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        event_count: cython.Py_ssize_t,
        timestamp_ms: cython.longlong,
        position: cython.longlong,
        has_delta: cython.bint,
    ) -> int:
        """Decode the events in ``data[start:stop]``; see ``filestream.codec.pure``."""
        if not 0 <= start <= stop <= len(data):
            raise IndexError("range lies outside the data")
        source: Source = cython.cast(Source, cython.cast(cython.p_char, data))
        size: cython.Py_ssize_t = stop - start
        pairs: cython.Py_ssize_t = self.pairs
        names_size: cython.Py_ssize_t = self.names_size
        values_size: cython.Py_ssize_t = self.values_size
        nulls: cython.Py_ssize_t = self.nulls
        body_size: cython.Py_ssize_t = self.body_size
        # A count that the bytes cannot hold is a lie; without a count the bytes set the bound.
        smallest: cython.Py_ssize_t = 3 if has_delta else 2
        most: cython.Py_ssize_t = size // smallest
        if event_count > most:
            raise CorruptDataError(_MESSAGES[_WRONG_COUNT])
        if event_count >= 0:
            most = event_count
        # Arrow's offsets have 32 bits.
        if size > _OFFSET_MAX - max(body_size, names_size, values_size, self.rows):
            raise InvalidRequestError(
                "a record batch holds 2 GiB at the most: ask for smaller ones."
            )
        self._reserve(most, size)
        self.walk_at = source + start
        self.walk_rows = 0
        self.walk_delta = 0
        status: cython.int = _NEEDS_SPACE
        block_end: Source = source + stop
        data_end: Source = source + len(data)
        while status == _NEEDS_SPACE:
            with cython.nogil:
                status = self._walk(block_end, data_end, most, timestamp_ms, position, has_delta)
            if status == _NEEDS_SPACE:
                self._reserve_pairs()
        if status == _OK and event_count >= 0 and self.walk_rows != event_count:
            status = _WRONG_COUNT
        if status != _OK:
            self.pairs = pairs
            self.names_size = names_size
            self.values_size = values_size
            self.nulls = nulls
            self.body_size = body_size
            raise CorruptDataError(_MESSAGES[status])
        self.rows += self.walk_rows
        self.size_bytes += size
        return self.walk_rows

    @cython.cfunc
    @cython.exceptval(-1)
    def _reserve(self, most: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        rows: cython.Py_ssize_t = self.rows + most
        if self.wants_timestamp:
            self.timestamps.reserve(rows * 8)
        if self.wants_body:
            self.body_offsets.reserve((rows + 1) * 4)
            # 32 bytes of slack, so that short bodies are copied with one fixed-size move.
            self.bodies.reserve(self.body_size + size + 32)
        if self.wants_headers:
            self.map_offsets.reserve((rows + 1) * 4)
            self.names.reserve(self.names_size + size)
            self.values.reserve(self.values_size + size)
        if self.wants_position:
            self.positions.reserve(rows * 8)
        if self.wants_index:
            self.indexes.reserve(rows * 4)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _reserve_pairs(self) -> cython.int:
        pairs: cython.Py_ssize_t = self.pairs * 4 + _HEADERS_MAX + 1
        self.name_offsets.reserve(pairs * 4)
        self.value_offsets.reserve(pairs * 4)
        self.value_is_set.reserve(pairs)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(
        self,
        stop: Source,
        data_end: Source,
        most: cython.Py_ssize_t,
        timestamp_ms: int64_t,
        position: int64_t,
        has_delta: cython.bint,
    ) -> cython.int:
        """Events from ``walk_at`` to ``stop``; stops early when headers need more memory.

        In one piece, longer than a screen: with its numbers read by inlined functions it was 5 to
        8 % slower for bodies of 16 bytes, and no faster for longer ones.
        """
        at: Source = self.walk_at
        done: Source = at
        body: Source
        first_row: cython.Py_ssize_t = self.rows
        row: cython.Py_ssize_t = first_row + self.walk_rows
        last_row: cython.Py_ssize_t = first_row + most
        body_size: cython.Py_ssize_t = self.body_size
        last_delta: int64_t = self.walk_delta
        bodies: cython.p_uchar = cython.NULL
        body_offsets: cython.pointer(int32_t) = cython.NULL
        timestamps: cython.pointer(int64_t) = cython.NULL
        map_offsets: cython.pointer(int32_t) = cython.NULL
        positions: cython.pointer(int64_t) = cython.NULL
        indexes: cython.pointer(int32_t) = cython.NULL
        size: int64_t = 0
        delta: int64_t = 0
        is_negative: cython.bint = False
        status: cython.int = _OK
        if self.wants_body:
            bodies = self.bodies.data
            body_offsets = cython.cast(cython.pointer(int32_t), self.body_offsets.data)
        if self.wants_timestamp:
            timestamps = cython.cast(cython.pointer(int64_t), self.timestamps.data)
        if self.wants_headers:
            map_offsets = cython.cast(cython.pointer(int32_t), self.map_offsets.data)
        if self.wants_position:
            positions = cython.cast(cython.pointer(int64_t), self.positions.data)
        if self.wants_index:
            indexes = cython.cast(cython.pointer(int32_t), self.indexes.data)
        while at < stop:
            if row >= last_row:
                status = _WRONG_COUNT
                break
            # Most lengths take one or two bytes; the general reader is a call.
            if at[0] < 128:
                size = at[0] >> 1
                is_negative = at[0] & 1
                at += 1
            elif stop - at > 1 and at[1] < 128:
                size = (at[0] & 127) >> 1 | cython.cast(int64_t, at[1]) << 6
                is_negative = at[0] & 1
                at += 2
            else:
                status = _read_long(cython.address(at), stop, cython.address(size))
                if status != _OK:
                    break
                is_negative = size < 0
            if is_negative:
                status = _NEGATIVE_BODY
                break
            if size >= stop - at:
                status = _CUT
                break
            body = at
            at += size
            if at[0] == 0:
                at += 1
            else:
                status = self._walk_headers(cython.address(at), stop)
                if status != _OK:
                    break
            if has_delta:
                if at < stop and at[0] < 128 and not at[0] & 1:
                    delta = at[0] >> 1
                    at += 1
                else:
                    status = _read_long(cython.address(at), stop, cython.address(delta))
                    if status != _OK:
                        break
                if delta < last_delta:
                    status = _DECREASING
                    break
                last_delta = delta
            if bodies != cython.NULL:
                if size <= 32 and data_end - body >= 32:
                    memcpy(bodies + body_size, body, 32)
                else:
                    memcpy(bodies + body_size, body, size)
                body_size += size
                body_offsets[row + 1] = cython.cast(int32_t, body_size)
            if timestamps != cython.NULL:
                timestamps[row] = (timestamp_ms + last_delta) * 1000
            if map_offsets != cython.NULL:
                map_offsets[row + 1] = cython.cast(int32_t, self.pairs)
            if positions != cython.NULL:
                positions[row] = position
            if indexes != cython.NULL:
                indexes[row] = cython.cast(int32_t, row - first_row)
            row += 1
            done = at
        # Only whole events move the walk on, so that it can be resumed here.
        self.walk_at = done
        self.walk_rows = row - first_row
        self.walk_delta = last_delta
        self.body_size = body_size
        return status

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk_headers(self, cursor: cython.pointer(Source), stop: Source) -> cython.int:
        """The map at ``cursor``, kept when headers are wanted and checked in any case."""
        at: Source = cursor[0]
        count: int64_t
        ignored: int64_t
        total: int64_t = 0
        first: cython.Py_ssize_t = self.pairs
        status: cython.int
        # Undone when memory is short, so that the whole event is read again.
        names_size: cython.Py_ssize_t = self.names_size
        values_size: cython.Py_ssize_t = self.values_size
        nulls: cython.Py_ssize_t = self.nulls
        while True:
            status = _read_long(cython.address(at), stop, cython.address(count))
            if status != _OK:
                break
            if count == 0:
                cursor[0] = at
                return _OK
            if count < 0:
                status = _read_long(cython.address(at), stop, cython.address(ignored))
                if status != _OK:
                    break
                # Compared before it is turned round: INT64_MIN has no positive twin.
                if count < -_HEADERS_MAX:
                    status = _TOO_MANY_HEADERS
                    break
                count = -count
            if count > (stop - at) // 2:
                status = _CUT
                break
            total += count
            if total > _HEADERS_MAX:
                status = _TOO_MANY_HEADERS
                break
            if self.wants_headers and (self.pairs + count + 1) * 4 > self.name_offsets.capacity:
                status = _NEEDS_SPACE
                break
            if self.wants_headers and (
                (self.pairs + count + 1) * 4 > self.value_offsets.capacity
                or self.pairs + count + 1 > self.value_is_set.capacity
            ):
                status = _NEEDS_SPACE
                break
            while count > 0 and status == _OK:
                status = self._walk_pair(cython.address(at), stop, first)
                count -= 1
            if status != _OK:
                break
        self.pairs = first
        self.names_size = names_size
        self.values_size = values_size
        self.nulls = nulls
        return status

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk_pair(
        self, cursor: cython.pointer(Source), stop: Source, first: cython.Py_ssize_t
    ) -> cython.int:
        at: Source = cursor[0]
        name: Source
        value: Source
        name_size: int64_t
        value_size: int64_t = 0
        is_set: uint8_t = 1
        status: cython.int = _read_long(cython.address(at), stop, cython.address(name_size))
        if status != _OK:
            return status
        if name_size < 0:
            return _BAD_TEXT
        if name_size >= stop - at:
            return _CUT
        name = at
        at += name_size
        if at[0] == 2:
            is_set = 0
            at += 1
            value = at
        elif at[0] == 0:
            at += 1
            status = _read_long(cython.address(at), stop, cython.address(value_size))
            if status != _OK:
                return status
            if value_size < 0:
                return _BAD_TEXT
            if value_size > stop - at:
                return _CUT
            value = at
            at += value_size
        else:
            return _BAD_BRANCH
        if not _is_utf8(name, name + name_size) or not _is_utf8(value, value + value_size):
            return _BAD_TEXT
        cursor[0] = at
        if self.wants_headers:
            self._forget_pair(name, name_size, first)
            memcpy(self.names.data + self.names_size, name, name_size)
            memcpy(self.values.data + self.values_size, value, value_size)
            self.names_size += name_size
            self.values_size += value_size
            self.value_is_set.data[self.pairs] = is_set
            self.nulls += 1 - is_set
            self.pairs += 1
            cython.cast(cython.pointer(int32_t), self.name_offsets.data)[self.pairs] = cython.cast(
                int32_t, self.names_size
            )
            cython.cast(cython.pointer(int32_t), self.value_offsets.data)[self.pairs] = cython.cast(
                int32_t, self.values_size
            )
        return _OK

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _forget_pair(
        self, name: Source, name_size: int64_t, first: cython.Py_ssize_t
    ) -> cython.void:
        """Of equal names in one event the last wins, so an earlier one goes."""
        offsets: cython.pointer(int32_t) = cython.cast(
            cython.pointer(int32_t), self.name_offsets.data
        )
        pair: cython.Py_ssize_t
        later: cython.Py_ssize_t
        cut: int32_t
        for pair in range(first, self.pairs):
            if (
                offsets[pair + 1] - offsets[pair] == name_size
                and memcmp(self.names.data + offsets[pair], name, name_size) == 0
            ):
                memmove(
                    self.names.data + offsets[pair],
                    self.names.data + offsets[pair + 1],
                    self.names_size - offsets[pair + 1],
                )
                self.names_size -= name_size
                self.nulls -= 1 - self.value_is_set.data[pair]
                for later in range(pair, self.pairs - 1):
                    offsets[later + 1] = offsets[later + 2] - cython.cast(int32_t, name_size)
                    self.value_is_set.data[later] = self.value_is_set.data[later + 1]
                offsets = cython.cast(cython.pointer(int32_t), self.value_offsets.data)
                cut = offsets[pair + 1] - offsets[pair]
                memmove(
                    self.values.data + offsets[pair],
                    self.values.data + offsets[pair + 1],
                    self.values_size - offsets[pair + 1],
                )
                self.values_size -= cut
                for later in range(pair, self.pairs - 1):
                    offsets[later + 1] = offsets[later + 2] - cut
                self.pairs -= 1
                return

    def finish(self) -> list:
        """The wanted columns as Arrow arrays, and a fresh start; see ``filestream.codec.pure``."""
        import pyarrow as pa

        rows: cython.Py_ssize_t = self.rows
        columns: list = []
        if self.wants_timestamp:
            columns.append(
                pa.Array.from_buffers(
                    pa.timestamp("us", "UTC"), rows, [None, self.timestamps.take(rows * 8)]
                )
            )
        if self.wants_body:
            columns.append(
                pa.Array.from_buffers(
                    pa.binary(),
                    rows,
                    [
                        None,
                        self.body_offsets.take((rows + 1) * 4),
                        self.bodies.take(self.body_size),
                    ],
                )
            )
        if self.wants_headers:
            columns.append(self._finish_headers())
        if self.wants_position:
            columns.append(
                pa.Array.from_buffers(pa.int64(), rows, [None, self.positions.take(rows * 8)])
            )
        if self.wants_index:
            columns.append(
                pa.Array.from_buffers(pa.int32(), rows, [None, self.indexes.take(rows * 4)])
            )
        self._reset()
        return columns

    @cython.cfunc
    def _finish_headers(self) -> object:
        import pyarrow as pa

        names = pa.Array.from_buffers(
            pa.string(),
            self.pairs,
            [
                None,
                self.name_offsets.take((self.pairs + 1) * 4),
                self.names.take(self.names_size),
            ],
        )
        values = pa.Array.from_buffers(
            pa.string(),
            self.pairs,
            [
                self._validity(),
                self.value_offsets.take((self.pairs + 1) * 4),
                self.values.take(self.values_size),
            ],
        )
        offsets = pa.Array.from_buffers(
            pa.int32(), self.rows + 1, [None, self.map_offsets.take((self.rows + 1) * 4)]
        )
        return pa.MapArray.from_arrays(offsets, names, values)

    @cython.cfunc
    def _validity(self) -> object:
        """Arrow's bitmap, least significant bit first; None when no value is null."""
        if self.nulls == 0:
            return None
        bitmap: _Memory = _Memory((self.pairs + 7) // 8)
        pair: cython.Py_ssize_t
        for pair in range((self.pairs + 7) // 8):
            bitmap.data[pair] = 0
        for pair in range(self.pairs):
            if self.value_is_set.data[pair]:
                bitmap.data[pair >> 3] |= cython.cast(uint8_t, 1 << (pair & 7))
        return bitmap.take((self.pairs + 7) // 8)
