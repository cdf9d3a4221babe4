"""Names and paths of a stream: the only room that builds or parses them. Pure.

    <stream>/<generation %05d>/<start>.<duration>/<writer>.<sequence %06d>.{dat,idx}
    <stream>/<generation %05d>/<start>.<duration>/<writer>.<first %06d>-<last %06d>.{seg,idx}
    <stream>/_stream/stream.json    what was fixed at creation; a stream exists when this does
    <stream>/_stream/<id>/...       the embedded property store of the stream with this id

Start and duration are seconds. Padding is for sorted listings only: readers take any width and
compare numbers. Names are parsed from the right, so a writer's id may hold dots, and is compared whole:
``file.1`` has nothing to do with ``file.10``. Names that begin with ``_`` or ``.`` and names that
do not parse are not part of the stream. CDAP's generation 0 has no directory: its partitions lie
in the stream's own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from filestream.errors import InvalidRequestError

__all__ = [
    "DESCRIPTION_KEY",
    "Offset",
    "Pack",
    "Partition",
    "Segment",
    "check_group_name",
    "check_stream_name",
    "check_writer_id",
    "parse_generation",
    "parse_pack_file",
    "parse_segment_file",
    "parse_segment_name",
    "store_key",
]

DESCRIPTION_KEY: Final = "_stream/stream.json"
_STORE_PREFIX: Final = "_stream"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PARTITION: Final = re.compile(r"([0-9]{1,15})\.([0-9]{1,10})")
_SEGMENT_FILE: Final = re.compile(r"(.+)\.([0-9]{1,9})\.(dat|idx)")
_PACK_FILE: Final = re.compile(r"(.+)\.([0-9]{6,9})-([0-9]{6,9})\.(seg|idx)")
_OFFSET: Final = re.compile(
    r"([0-9]{1,9})/([0-9]{1,15}\.[0-9]{1,10})/([^/:]+)\.([0-9]{1,9}):([0-9]{1,18})\.([0-9]{1,10})"
)


def store_key(stream_id: str) -> str:
    """Where the embedded property store lies.

    It carries the stream's id, so that a stream that was deleted and created again shares
    nothing with what went before: neither its generation nor its properties nor its claims.
    """
    return f"{_STORE_PREFIX}/{stream_id}"


def _check_name(what: str, name: object) -> str:
    # Two dots would cut a range of positions in the middle of an offset.
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(".") or ".." in name:
        raise InvalidRequestError(
            f"no {what}: {name!r:.100}. Use 1 to 128 letters, digits, '_', '-' and '.', "
            "beginning with a letter or digit"
        )
    return name


def check_stream_name(name: object) -> str:
    """The name itself, if the last part of a stream's URL may be so.

    Raises:
        InvalidRequestError: it may not; nothing that climbs out of its directory ever does.
    """
    return _check_name("stream name", name)


def check_writer_id(writer_id: object) -> str:
    """The id itself, if a writer may be called so.

    Raises:
        InvalidRequestError: it may not.
    """
    return _check_name("writer id", writer_id)


def check_group_name(name: object) -> str:
    """The name itself, if a group of consumers may be called so.

    Raises:
        InvalidRequestError: it may not.
    """
    return _check_name("group name", name)


def parse_generation(name: str) -> int | None:
    """The number of a generation's directory, or None."""
    return int(name) if name.isascii() and name.isdigit() and 0 < int(name) < 10**9 else None


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A half-open interval of time in one generation; a directory.

    Attributes:
        generation: 1-based; 0 for CDAP streams that were never truncated.
        start_s: first second.
        duration_s: length in seconds.
    """

    generation: int
    start_s: int
    duration_s: int

    def __post_init__(self) -> None:
        if self.generation < 0 or self.duration_s <= 0:
            raise InvalidRequestError(f"no partition. partition={self}")

    @classmethod
    def of(cls, generation: int, timestamp_ms: int, duration_ms: int) -> "Partition":
        """The partition that holds a timestamp."""
        start_ms = timestamp_ms // duration_ms * duration_ms
        return cls(generation, start_ms // 1000, duration_ms // 1000)

    @classmethod
    def parse(cls, generation: int, name: str) -> "Partition | None":
        """The partition of a directory's name, or None."""
        match = _PARTITION.fullmatch(name)
        if match is None or int(match[2]) == 0:
            return None
        return cls(generation, int(match[1]), int(match[2]))

    @property
    def start_ms(self) -> int:
        """First millisecond."""
        return self.start_s * 1000

    @property
    def end_ms(self) -> int:
        """First millisecond after it."""
        return (self.start_s + self.duration_s) * 1000

    @property
    def name(self) -> str:
        """Name of the directory."""
        return f"{self.start_s:010d}.{self.duration_s:05d}"

    @property
    def key(self) -> str:
        """Path of the directory below the stream."""
        return f"{self.generation:05d}/{self.name}" if self.generation else self.name


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One event file with its index, written by one writer; sorts by time, writer and age.

    Attributes:
        directory: the partition's path as it was listed, when it is padded another way than
            we do; empty otherwise.
        digits: how many digits the sequence has in the name.
    """

    partition: Partition
    writer_id: str
    sequence: int
    directory: str = ""
    digits: int = 6

    @property
    def key(self) -> str:
        """Path below the stream, without suffix."""
        folder = self.directory or self.partition.key
        return f"{folder}/{self.writer_id}.{self.sequence:0{self.digits}d}"

    @property
    def data_key(self) -> str:
        """Path of the event file."""
        return f"{self.key}.dat"

    @property
    def index_key(self) -> str:
        """Path of the index file."""
        return f"{self.key}.idx"


def parse_segment_name(name: str) -> tuple[str, str, str] | None:
    """Writer, digits of the sequence and suffix of a file name, or None."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or name[0] in "._" or not _NAME.fullmatch(match[1]):
        return None
    return match[1], match[2], match[3]


def parse_segment_file(
    partition: Partition, directory: str, name: str
) -> tuple[Segment, str] | None:
    """Segment and suffix of a file name in a partition's directory, or None."""
    found = parse_segment_name(name)
    if found is None:
        return None
    writer_id, digits, suffix = found
    known = "" if directory == partition.key else directory
    return Segment(partition, writer_id, int(digits), known, len(digits)), suffix


@dataclass(frozen=True, slots=True, order=True)
class Pack:
    """Two files that stand for the segments ``first`` to ``last`` of one writer.

    Attributes:
        directory: path of the partition's directory below the stream; empty for a storage whose
            root that directory is.
    """

    directory: str
    writer_id: str
    first: int
    last: int

    @property
    def data_key(self) -> str:
        """Path of the file that holds the segments."""
        return f"{self._key}.seg"

    @property
    def index_key(self) -> str:
        """Path of the file that says where each begins."""
        return f"{self._key}.idx"

    @property
    def _key(self) -> str:
        return _below(self.directory, f"{self.writer_id}.{self.first:06d}-{self.last:06d}")

    def covers(self, sequence: int) -> bool:
        """Whether it holds the segment with this sequence."""
        return self.first <= sequence <= self.last

    def segment_names(self) -> Iterator[str]:
        """Names of the event files that it stands for."""
        sequences = range(self.first, self.last + 1)
        return (f"{self.writer_id}.{sequence:06d}.dat" for sequence in sequences)


def parse_pack_file(directory: str, name: str) -> tuple[Pack, str] | None:
    """Pack and suffix of a file name, or None; names that we would not write are none."""
    match = _PACK_FILE.fullmatch(name)
    if match is None or name[0] in "._" or not _NAME.fullmatch(match[1]):
        return None
    pack = Pack(directory, match[1], int(match[2]), int(match[3]))
    written = pack.data_key if match[4] == "seg" else pack.index_key
    if pack.first > pack.last or written != _below(directory, name):
        return None
    return pack, match[4]


def _below(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A place between events; reading from it begins with the event it names.

    Text form: ``00001/1401408000.86400/file.0.000000:340.1``, the event with index 1 in the block
    that begins at byte 340.

    Attributes:
        generation: of the stream.
        start_s, duration_s: the partition.
        writer_id, sequence: the segment in it.
        position: byte at which the event's block begins.
        index: 0-based place of the event in its block.
    """

    generation: int
    start_s: int
    duration_s: int
    writer_id: str
    sequence: int
    position: int
    index: int

    def __post_init__(self) -> None:
        if min(self.sequence, self.position, self.index) < 0:
            raise InvalidRequestError(f"no offset: a number is negative. offset={self}")

    @classmethod
    def in_segment(cls, segment: Segment, position: int, index: int) -> "Offset":
        """A place in a segment."""
        part = segment.partition
        return cls(
            part.generation, part.start_s, part.duration_s,
            segment.writer_id, segment.sequence, position, index,
        )  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> "Offset":
        """The place that a text names; digits may be padded in any width.

        Raises:
            InvalidRequestError: the text is no offset.
        """
        match = _OFFSET.fullmatch(text)
        if match is None or not _NAME.fullmatch(match[3]):
            raise InvalidRequestError(
                f"no offset: {text!r:.200}. It looks like "
                "00001/1401408000.86400/file.0.000000:340.1"
            )
        start, duration = match[2].split(".")
        if int(duration) == 0:
            raise InvalidRequestError(f"no offset: {text!r:.200}. The duration is zero")
        return cls(
            int(match[1]), int(start), int(duration), match[3],
            int(match[4]), int(match[5]), int(match[6]),
        )  # fmt: skip

    @property
    def partition(self) -> Partition:
        """The partition it lies in."""
        return Partition(self.generation, self.start_s, self.duration_s)

    @property
    def segment_path(self) -> str:
        """The part of the text before the colon."""
        return (
            f"{self.generation:05d}/{self.start_s:010d}.{self.duration_s:05d}/"
            f"{self.writer_id}.{self.sequence:06d}"
        )

    def __str__(self) -> str:
        """The text that ``parse`` takes."""
        return f"{self.segment_path}:{self.position}.{self.index}"
