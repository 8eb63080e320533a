"""Checks of the state folder, Prefect and the installed packages.

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

from retune.compiler.core import config
from retune.compiler.core.errors import StoreError, install_hint
from retune.flows.cli.state_folder import check_state_folder
from retune.flows.doctor.machine import Finding, fail, ok, warn
from retune.storage.store_url import folder_of

LOW_DISK = 1 << 30
"""Bytes: less is soon full of records."""

# A round takes a few seconds, and flushes several files.
SLOW_SECONDS = 0.2
"""A small file that takes longer than this to be durable delays every round."""

PACKAGES = ("retune-compiler", "llvmlite", "numpy", "onnx", "prefect", "pyarrow", "xgboost")
OPTIONAL = {"onnxruntime": "the comparison in reports", "duckdb": "`retune records query`"}


def state_folder(home: Path) -> Finding:
    """Whether the state folder can be written, quickly, and for how long."""
    try:
        free, seconds = check_state_folder(home)
    except StoreError as error:
        what, _, advice = str(error).partition("; ")
        return fail("state folder", what, advice)
    text = f"{home}: {free / 2**30:.1f} GiB free, a file is durable after {seconds * 1e3:.0f} ms"
    if free < LOW_DISK:
        return warn("state folder", text, "free some space, or choose another folder with --store")
    if seconds > SLOW_SECONDS:
        return warn("state folder", text, "a local disk is quicker: every round waits for this")
    return ok("state folder", text)


def prefect(url: str | None) -> Finding:
    """Whether the Prefect server answers, where a server is configured."""
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


def versions() -> Finding:
    """What is installed, and what is missing that would be of use."""
    text = f"Python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    missing = {name: use for name, use in OPTIONAL.items() if find_spec(name) is None}
    if missing:
        uses = "; ".join(f"{name}: {use}" for name, use in missing.items())
        return warn("packages", f"{text}; missing {', '.join(missing)}", f"{install_hint('report')} ({uses})")
    return ok("packages", text)


def everything(store: str | None = None) -> Iterable[Finding]:
    """All findings about what Retune works with; `store` is as `--store`. Raises: OptionError for settings that make no
    sense.
    """
    settings = config.load()
    yield state_folder(folder_of(store) or settings.home)
    yield prefect(settings.prefect_api)
    yield versions()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
