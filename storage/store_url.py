"""Opens a store by path or URL, and hides passwords in URLs.

Displays and records show the redacted URL, which opens the same files in a process that knows the complete URL.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from retune.compiler.core.errors import HIDDEN, StoreError, without_passwords
from retune.storage.blob_store import BlobStore, LocalBlobStore
from retune.storage.object_store import ObjectBlobStore

Location = Path | str
"""Where a store is: a path, or a URL as text."""

_WHOLE: dict[str, str] = {}
"""Complete URLs, by their redacted form."""


def redact(url: str) -> str:
    """A URL without its password, which this process can open from now on; any other text unchanged."""
    shown = without_passwords(url)
    if shown != url:
        _WHOLE[shown] = url
    return shown


def unredact(location: Location) -> Location:
    """The complete URL that was redacted in this process, for another process; any other location unchanged."""
    return _WHOLE.get(location, location) if isinstance(location, str) else location


def is_remote(location: Location) -> bool:
    """Whether a location is a URL of something other than a folder of this machine."""
    return isinstance(location, str) and "://" in location and not location.startswith("file://")


def local_folder(location: Location) -> Path:
    """The folder of a path or a `file://` URL, absolute.

    Raises: StoreError when a `file://` URL names another machine.
    """
    if isinstance(location, str) and location.startswith("file://"):
        parts = urlsplit(location)
        if parts.netloc not in ("", "localhost"):
            raise StoreError(
                f"{location} names a folder of {parts.netloc}: write file:///folder for one of this machine"
            )
        return Path(unquote(parts.path)).absolute()
    return Path(location).absolute()


def folder_of(store: Location | None) -> Path | None:
    """The state folder that `--store` names; None where it names none or a URL of elsewhere, so that the settings
    decide. Raises: as `local_folder`.
    """
    return None if not store or is_remote(store) else local_folder(store)


def open_blob_store(location: Location) -> BlobStore:
    """The files at a path, a `file://` URL, or any URL that fsspec knows, such as `s3://bucket/folder`.

    Raises: StoreError when the location cannot hold a store, or its kind needs a package that is not installed.
    """
    location = unredact(location)
    if not is_remote(location):
        return LocalBlobStore(local_folder(location))
    # The mask would be sent as the password, and the store's refusal would not say why.
    if f":{HIDDEN}@" in str(location):
        raise StoreError(f"{location} is shown without its password: give the URL as it was given first")
    return ObjectBlobStore(str(location))
