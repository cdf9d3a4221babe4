"""Streams: directories, generations, writers and readers across files."""

if __name__ != "filestream.partitions":
    raise ImportError("import filestream.partitions, not the bare folder name")
