from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filestream.errors import InvalidRequestError
from filestream.partitions.layout import Offset
from filestream.partitions.positions import At, End, Last, Start, parse_position, parse_range
from filestream.units import (
    format_duration,
    format_size,
    format_size_exactly,
    format_timestamp,
    parse_duration_ms,
    parse_size_bytes,
)

NOW = 1_795_168_800_000  # 2026-11-20T10:00Z
OFFSET = "00001/1401408000.86400/file.0.000000:340.1"


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ("start", Start()),
        ("end", End()),
        ("-100", Last(100)),
        (-100, Last(100)),
        ("@2026-11-20T10:00Z", At(NOW)),
        ("@2026-11-20T11:00+01:00", At(NOW)),
        ("@2026-11-20T10:00", At(NOW)),
        ("@2026-11-20", At(NOW - 10 * 3_600_000)),
        ("@1401408000000", At(1401408000000)),
        ("@-10m", At(NOW - 600_000)),
        ("@-1d12h", At(NOW - 36 * 3_600_000)),
        ("@now", At(NOW)),
        (datetime(2026, 11, 20, 10, tzinfo=UTC), At(NOW)),
        (datetime(2026, 11, 20, 11, tzinfo=timezone(timedelta(hours=1))), At(NOW)),
        (OFFSET, Offset.parse(OFFSET)),
        (Offset.parse(OFFSET), Offset.parse(OFFSET)),
        (At(5), At(5)),
    ],
)
def test_positions(given, position):
    assert parse_position(given, now_ms=NOW) == position


@pytest.mark.parametrize(
    "given",
    [
        "",
        "begin",
        "@",
        "@yesterday",
        "100",
        100,
        "--5",
        "-x",
        "@1795000000",
        "@-5",
        None,
        1.5,
        True,
        "a/b:c",
    ],
)
def test_what_is_no_position_is_refused(given):
    with pytest.raises(InvalidRequestError, match="no (position|time|duration|offset)"):
        parse_position(given, now_ms=NOW)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("start..end", (Start(), End())),
        ("..", (Start(), End())),
        ("-100", (Last(100), End())),
        ("..-10", (Start(), Last(10))),
        ("@-1h..@-10m", (At(NOW - 3_600_000), At(NOW - 600_000))),
        (f"{OFFSET}..end", (Offset.parse(OFFSET), End())),
        (f"start..{OFFSET}", (Start(), Offset.parse(OFFSET))),
    ],
)
def test_ranges(text, ends):
    assert parse_range(text, now_ms=NOW) == ends


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("90s", 90_000),
        (1.5, 1500),
        ("2w", 1_209_600_000),
    ],
)
def test_durations(text, milliseconds):
    assert parse_duration_ms(text) == milliseconds
    assert parse_duration_ms(format_duration(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "1x", "d", "-5s", "1 day", "h1", "90", -1, None, True, "1e9s"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InvalidRequestError):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256KiB", 262_144),
        ("64MB", 64_000_000),
        ("1g", 10**9),
        ("7", 7),
        (7, 7),
        ("1.5 MiB", 1_572_864),
    ],
)
def test_sizes(text, size):
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 apple", -1, "1KiBB", None])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidRequestError):
        parse_size_bytes(text)


@given(st.integers(0, 1 << 50))
def test_an_exact_size_is_read_back(size):
    assert parse_size_bytes(format_size_exactly(size)) == size
    assert parse_size_bytes(format_size_exactly(size << 20)) == size << 20
    assert format_size_exactly(3 << 20) == "3MiB"


def test_values_are_shown_for_people():
    assert format_timestamp(1401408000005) == "2014-05-30T00:00:00.005Z"
    assert format_timestamp(10**20) == f"{10**20} ms"
    assert format_size(1536) == "1.5 KiB"
    assert format_duration(5_400_000) == "90m"
