"""Found by Spark, which imports every top-level ``pyspark_*`` module and takes its ``DefaultSource``."""

from filestream.consumers.spark.source import FilestreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
