"""The fleet that a run uses, as plain data: what `--fleet` may be, and `FleetPlan`. Free of Prefect, for the command
line.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

from retune.compiler.core.errors import OptionError, install_hint

PREFECT, DASK = "prefect", "dask"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """How a run reaches the workers of its fleet."""

    kind: str
    """A string for `fleet_of`."""
    storage: str
    """The folder that a Prefect server's workers share."""
    device: str
    """The key of the device that times."""


def fleet_of(text: str) -> tuple[str, str]:
    """The kind of fleet, and its address if any, that a string such as `dask://10.0.0.5:8786` names.

    Raises: OptionError.
    """
    kind, sign, address = text.partition("://")
    if kind == "folder":
        raise OptionError(
            "a fleet needs an engine, a folder alone is none any more: start `dask scheduler` on one machine and "
            "use dask://HOST:8786 for runs and for `retune worker`, or prefect with a Prefect server"
        )
    try:
        url = urlsplit(f"tcp://{address}")
        is_address = bool(url.hostname and url.port) and url.netloc == address
    except ValueError:  # a port that is no number, or a bracket that is not closed
        is_address = False
    if kind not in (PREFECT, DASK) or (sign and (kind == PREFECT or not is_address)):
        raise OptionError(f"a fleet is prefect, dask or dask://HOST:PORT, not {text!r}")
    return kind, f"tcp://{address}" if address else ""


def require_fleet(text: str) -> tuple[str, str]:
    """As `fleet_of`. Raises: OptionError also when the package of the engine is not installed."""
    kind, address = fleet_of(text)
    # Looked for and not imported: this module stays free of Prefect.
    if kind == DASK and find_spec("prefect_dask") is None:
        raise OptionError(f"a fleet of dask needs the package prefect-dask: {install_hint('dask')}")
    return kind, address
