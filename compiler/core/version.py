"""The version of the package, which is read on first use: that takes longer than to import the runtime."""

from importlib import metadata

__version__ = metadata.version("retune-compiler")
