"""Opens a store by path or URL, and hides passwords in URLs.

Displays and records show the redacted URL, which opens the same files in a process that has been given the complete
one.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from retune.compiler.errors import HIDDEN, StoreError, without_passwords
from retune.storage.blob_store import BlobStore, LocalBlobStore
from retune.storage.object_store import ObjectBlobStore

Place = Path | str
"""A path, or a URL as text."""

_WHOLE: dict[str, str] = {}
"""URLs with their passwords, by what they are without."""


def redacted(place: str) -> str:
    """A URL without its password, for which this process takes the whole one from now on; any other text as it is."""
    shown = without_passwords(place)
    if shown != place:
        _WHOLE[shown] = place
    return shown


def unredacted(place: Place) -> Place:
    """The whole of a URL that was redacted in this process, for another one; any other place as it is."""
    return _WHOLE.get(place, place) if isinstance(place, str) else place


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


def open_blob_store(place: Place) -> BlobStore:
    """The files at a path, a `file://` URL, or any URL that fsspec knows, such as `s3://bucket/folder`.

    Raises: StoreError when the place cannot hold a store, or its kind needs a package that is not installed.
    """
    place = unredacted(place)
    if not is_remote(place):
        return LocalBlobStore(local_folder(place))
    # The mask would be sent as the password, and the store's refusal would not say why.
    if f":{HIDDEN}@" in str(place):
        raise StoreError(f"{place} is shown without its password: give the URL as it was given first")
    return ObjectBlobStore(str(place))
