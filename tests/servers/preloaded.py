"""What processes of tests begin with, so that each starts in milliseconds; starts no thread."""

import hdfs_native  # noqa: F401
import obstore.store  # noqa: F401
import pyarrow  # noqa: F401

import filestream.consumers.stream
import filestream.storage.hdfs
import filestream.storage.objects  # noqa: F401
