"""In: where a store is, as people write it. Out: its medium. Always: the same text opens the same files."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from compiler.errors import StoreError
from storage.medium import LocalMedium, Medium
from storage.objects import ObjectMedium

Place = Path | str
"""A path, or a URL as text."""


def is_remote(place: Place) -> bool:
    """Whether a place is a URL of something other than a folder of this machine."""
    return isinstance(place, str) and "://" in place and not place.startswith("file://")


def local_folder(place: Place) -> Path:
    """The folder that a path or a `file://` URL names, absolute.

    Raises: StoreError when a `file://` URL names another machine.
    """
    if isinstance(place, str) and place.startswith("file://"):
        parts = urlsplit(place)
        if parts.netloc not in ("", "localhost"):
            raise StoreError(f"{place} names a folder of {parts.netloc}: write file:///folder for one of this machine")
        return Path(unquote(parts.path)).absolute()
    return Path(place).absolute()


def open_medium(place: Place) -> Medium:
    """The files at a path, a `file://` URL, or any URL that fsspec knows, such as `s3://bucket/folder`.

    Raises: StoreError when the place cannot hold a store, or its kind needs a package that is not installed.
    """
    return ObjectMedium(str(place)) if is_remote(place) else LocalMedium(local_folder(place))
