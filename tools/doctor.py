"""What this installation can do and what a place can promise, found out by trying."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from filestream.clock import SystemClock
from filestream.codec import kernel
from filestream.errors import FilestreamError
from filestream.storage.open import open_storage, split_url
from filestream.storage.probe import probe
from filestream.version import VERSION

__all__ = ["Check", "check_installation", "check_place", "check_spark"]


_EXTRAS = {
    "pyspark": ("spark", "Spark"),
    "hdfs-native": ("hdfs", "HDFS"),
    "obstore": ("objects", "S3, Google Cloud Storage and Azure"),
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    is_ok: bool
    detail: str


def check_installation() -> Iterator[Check]:
    """Versions, the kernel, Java, and how Spark would find the source."""
    yield Check("filestream", True, f"{VERSION}, {kernel()} kernel")
    yield Check(
        "python", sys.version_info >= (3, 11), f"{platform.python_version()} {sys.executable}"
    )
    for name in ("pyarrow", "click", "google-crc32c", "pyspark", "hdfs-native", "obstore"):
        try:
            yield Check(name, True, version_of(name))
        except PackageNotFoundError:
            extra, use = _EXTRAS.get(name, ("", ""))
            hint = f"not installed; pip install 'filestream-engine[{extra}]' for {use}"
            yield Check(name, bool(extra), hint if extra else "not installed")
    yield Check("java", True, _java())
    chosen = os.environ.get("PYSPARK_PYTHON", "not set: Spark takes python3 from the PATH")
    yield Check("PYSPARK_PYTHON", True, chosen)


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if path is None:
        return "not found; Spark needs Java 17 or newer (JAVA_HOME, or java on the PATH)"
    shown = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)
    return f"{(shown.stderr.splitlines() or ['?'])[0]} {path}"


def check_place(url: str) -> Iterator[Check]:
    """Try every promise of a storage in a directory of its own, which is removed again."""
    storage = open_storage(url)
    scheme, path = split_url(storage.url)
    was_there = scheme != "file" or Path(path).exists()
    yield Check("place", True, f"{storage.url} durable={storage.is_durable}")
    clock = SystemClock()
    try:
        storage.list("")  # A store that cannot be asked is not one that lies.
        began_s = clock.monotonic_s()
        for tried in probe(storage):
            took_ms = (clock.monotonic_s() - began_s) * 1000
            shown = f"{'yes' if tried.is_kept else 'NO'} ({took_ms:.1f} ms)"
            if not tried.is_kept and not tried.is_needed:
                shown += "; not needed, other means are used"
            is_ok = tried.is_kept or not tried.is_needed
            yield Check(tried.name, is_ok, f"{shown}{' ' if tried.said else ''}{tried.said}")
            began_s = clock.monotonic_s()
    except FilestreamError as error:
        yield Check("answers", False, str(error))
        return
    finally:
        if not was_there:
            storage.remove_if_empty("")
    waker = storage.waker()
    yield Check("change notices", True, "inotify" if waker else "none; readers poll")
    if waker:
        waker.close()
    for level, survives in storage.levels.items():
        yield Check(f"acknowledges {level}", True, f"survives {survives}")


def check_spark() -> Iterator[Check]:
    """Start a local Spark, and ask a worker for its kernel."""
    try:
        from pyspark.sql import SparkSession

        from filestream.consumers.spark.register import register
    except ImportError as error:
        yield Check("spark", False, f"{error}; pip install 'filestream-engine[spark]'")
        return
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        register(spark)
        found = spark.sparkContext.parallelize([0], 1).map(lambda _: _kernel_here()).collect()[0]
        yield Check("spark", True, f"{spark.version}; workers run the {found} kernel")
    finally:
        spark.stop()


def _kernel_here() -> str:
    from filestream.codec import kernel as kernel_here

    return kernel_here()
