"""Doors: command line, benchmarks, demonstration."""

if __name__ != "filestream.tools":
    raise ImportError("import filestream.tools, not the bare folder name")
