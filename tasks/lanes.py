"""In: a device of this machine. Out: the right to time on it. Always: held by one process at a time; given back by
whatever ends that process.

The kernel's lock on a file keeps processes of this machine apart. On a Prefect server there is besides a global
concurrency limit of one slot for the device, which people see and can close: with no slot left nothing is timed. It is
asked for strictly, so a limit that somebody removed is an error and no silence.
"""

import fcntl
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

from compiler import config

LEASE_SECONDS = 60.0
"""So long a slot stays taken after the process that held it was killed; Prefect takes no shorter time."""


def lane_name(device: str = "cpu") -> str:
    """The limit of a device of this machine."""
    return f"retune-lane-{_safe(config.host_name())}-{_safe(device)}"


def ensure_limit(name: str, slots: int = 1) -> bool:
    """See to it that Prefect has a limit of that name; one that is there is left as it is. Whether it was made."""
    wanted = GlobalConcurrencyLimitCreate(name=name, limit=slots, active=True)
    with get_client(sync_client=True) as client:
        try:
            client.create_global_concurrency_limit(wanted)
        except ObjectAlreadyExists:
            return False
    return True


@contextmanager
def device_lane(device: str = "cpu", *, limited: bool = False) -> Iterator[None]:
    """Hold a device of this machine; `limited` also by the limit on the Prefect server.

    Raises: ConcurrencySlotAcquisitionError when that limit does not exist.
    """
    name = lane_name(device)
    with (Path(tempfile.gettempdir()) / f"{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not limited:
            yield
            return
        with concurrency(name, occupy=1, strict=True, lease_duration=LEASE_SECONDS):
            yield


def _safe(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
