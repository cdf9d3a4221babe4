import pyarrow as pa

def crc32c_range(data: bytes, start: int, stop: int, crc: int = 0) -> int: ...

class ColumnDecoder:
    rows: int
    size_bytes: int
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
    ) -> None: ...
    def add(
        self,
        data: bytes,
        start: int,
        stop: int,
        event_count: int,
        timestamp_ms: int,
        position: int,
        has_delta: bool,
    ) -> int: ...
    def finish(self) -> list[pa.Array]: ...
