"""The release, in one place; setup.cfg reads it from here."""

from typing import Final

__all__ = ["VERSION"]

VERSION: Final = "0.1.0"
