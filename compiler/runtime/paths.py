"""Checks path arguments."""

import os
from pathlib import Path

from retune.compiler.core.errors import OptionError


def path_of(path: object) -> Path:
    """The path. Raises: OptionError when it is no path, or no file system could have it."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or "\0" in text:
        raise OptionError(f"the path of a file is needed, not {path!r:.80}")
    return Path(text)
