"""Groups: who has read what; and the bridge to Spark."""

if __name__ != "filestream.consumers":
    raise ImportError("import filestream.consumers, not the bare folder name")
