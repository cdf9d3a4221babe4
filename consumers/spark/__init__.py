"""Spark: the Python data source over streams."""
