"""Checks of the settings, the store, Prefect and the installed packages.

Prefect is not imported, so the checks are quick and work where Prefect is broken.
"""

import platform
from base64 import b64encode
from collections.abc import Iterable
from http.client import HTTPException
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from retune.compiler import config
from retune.compiler.errors import RetuneError, StoreError, install_hint
from retune.flows.doctor.finding import Finding, fail, ok, warn
from retune.flows.doctor.known_pairs import pairs
from retune.flows.state_folder import check_state_folder
from retune.storage.blob_store import QUARANTINE
from retune.storage.files import new_id
from retune.storage.layout import part_names
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import is_remote, local_folder, open_blob_store

LOW_DISK = 1 << 30
"""Bytes: less is soon full of records."""

# A round takes a few seconds, and flushes several files.
SLOW_SECONDS = 0.2
"""A small file that takes longer than this to be durable delays every round."""

PACKAGES = ("retune-compiler", "llvmlite", "numpy", "onnx", "prefect", "pyarrow", "xgboost")
OPTIONAL = {"onnxruntime": "the comparison in reports", "duckdb": "`retune records query`"}

MANY_FILES = 20_000
"""Record files from which on listing them is felt."""


def settings() -> Finding:
    """Whether the settings make sense."""
    try:
        origins = config.explain()
    except RetuneError as error:
        return fail("settings", str(error), "correct it; `retune config` lists what there is")
    strange = config.strange_variables()
    if strange:
        (name, meant), *_ = strange.items()
        return warn("settings", f"{name} is set, but there is no such setting", f"perhaps {meant} was meant; unset it")
    changed = [f"{one.name} from {one.source}" for one in origins if one.source != "default"]
    return ok("settings", ", ".join(changed) or "all as they come")


def state_folder(home: Path) -> Finding:
    """Whether the state folder can be written, quickly, and for how long."""
    try:
        free, seconds = check_state_folder(home)
    except StoreError as error:
        what, _, advice = str(error).partition("; ")
        return fail("state folder", what, advice)
    found = f"{home}: {free / 2**30:.1f} GiB free, a file is durable after {seconds * 1e3:.0f} ms"
    if free < LOW_DISK:
        return warn("state folder", found, "free some space, or choose another folder with --store")
    if seconds > SLOW_SECONDS:
        return warn("state folder", found, "a local disk is quicker: every round waits for this")
    return ok("state folder", found)


def store(place: Path | str) -> Finding:
    """Whether the records can be used that lie in a folder or at a URL."""
    try:
        blobs = ParquetRecordStore(place).blobs
        files, quarantined = len(part_names(blobs)), len(blobs.files(QUARANTINE))
    except RetuneError as error:
        advice = "use the Retune that wrote them, or another place; a URL may need a package or a password"
        return fail("records", f"{place}: {error}", advice)
    if quarantined:
        return warn(
            "records",
            f"{files} files; {quarantined} unreadable ones were set aside in {blobs.where(QUARANTINE)}",
            "restore them from a backup, or delete them",
        )
    if files > MANY_FILES:
        return warn("records", f"{files} files", "join them: `retune records compact`")
    return ok("records", f"{files} files")


def prefect(url: str | None) -> Finding:
    """Whether the Prefect server answers, where there is to be one."""
    if not url:
        return ok("Prefect", f"{_version('prefect')}, embedded: no server is needed")
    try:
        # urllib: Prefect's client would take a second to import, and the check must work where Prefect is broken.
        with urlopen(_health_of(url), timeout=5) as answer:
            healthy = answer.status == 200
    except (URLError, OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return fail(
            "Prefect", f"{url} does not answer: {reason}", "start it (`prefect server start`), or unset PREFECT_API_URL"
        )
    if not healthy:
        return fail("Prefect", f"{url} is not well", "look at the server's log")
    return ok("Prefect", f"{_version('prefect')}, server at {url}")


def _health_of(url: str) -> Request:
    """How to ask a server whether it is well; a name and password in its address are sent as a browser would.

    Raises: ValueError for no http address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("it is no http address")
    name, sign, host = parts.netloc.rpartition("@")
    headers = {"Authorization": f"Basic {b64encode(unquote(name).encode()).decode()}"} if sign else {}
    return Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}/health", headers=headers)


def fleet(kind: str | None, place: str | None) -> Finding:
    """Whether the place that a fleet shares can be used, where there is a fleet."""
    if not kind and not place:
        return ok("fleet", "none: this machine builds and times")
    if not place:
        advice = "set RETUNE_FLEET_STORAGE to a folder or URL that all machines reach, unless there is only this one"
        return warn("fleet", f"{kind}, sharing fleet/ in the state folder", advice)
    probe = f"doctor/{new_id()}"
    try:
        blobs = open_blob_store(place)
        blobs.create(probe, b"probe")
        intact = blobs.read(probe) == b"probe"
        blobs.remove([probe])
    except (RetuneError, OSError) as error:
        return fail("fleet", f"{place}: {error}", "make it a place that this machine may write to")
    if not intact:
        return fail("fleet", f"{place} gives back something else than was put", "use another place")
    return ok("fleet", f"{kind or 'its kind is not set'}, sharing {place}")


def versions() -> Finding:
    """What is installed, and what is missing that would be of use."""
    found = f"Python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    missing = {name: use for name, use in OPTIONAL.items() if find_spec(name) is None}
    if missing:
        uses = "; ".join(f"{name}: {use}" for name, use in missing.items())
        return warn("packages", f"{found}; missing {', '.join(missing)}", f"{install_hint('report')} ({uses})")
    return ok("packages", found)


def everything(place: str | None = None) -> Iterable[Finding]:
    """All findings about what Retune works with; `place` is the state folder, or the URL of the records, unless the
    settings are to say.
    """
    sound = settings()
    yield sound
    home, url = Path(".retune").absolute(), None
    shared: tuple[str | None, str | None] = (None, None)
    try:
        configured = config.load()
        home, url = configured.home, configured.prefect_api
        shared = configured.fleet, configured.fleet_storage
    except RetuneError:
        pass  # said already
    if place and not is_remote(place):
        home = local_folder(place)
    yield state_folder(home)
    yield store(place if place and is_remote(place) else home)
    yield prefect(url)
    yield fleet(*shared)
    yield versions()
    yield pairs(_installed)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _version(package: str) -> str:
    return _installed(package) or "not installed"
