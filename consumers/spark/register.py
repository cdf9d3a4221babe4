"""Makes ``format("filestream")`` known to a Spark session."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Register the data source with a session, classic or Connect.

    Not needed where ``PYSPARK_PYTHON`` names an interpreter that has filestream installed: Spark
    then finds it by itself.

    Args:
        spark: the session. Its executors need filestream installed as well.
    """
    from filestream.consumers.spark.source import FilestreamDataSource

    # Spark would take python3 from the PATH, which need not be this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark.dataSource.register(FilestreamDataSource)
