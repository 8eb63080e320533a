"""The limit of a device on a Prefect server: a global concurrency limit with one slot, which people see and can close.

With no slot left nothing is timed. It is asked for strictly, so a limit that somebody removed is an error.
"""

from contextlib import AbstractContextManager, nullcontext

from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

from retune.compiler.measure.processes.device_lock import lock_name
from retune.compiler.measure.remote.fleet import BUILD, device_queue

LEASE_SECONDS = 60.0
"""So long a slot stays taken after the process that held it was killed; Prefect takes no shorter time."""


def ensure_limit(name: str, slots: int = 1) -> bool:
    """Ensure that Prefect has a limit of that name; an existing limit is left as it is. Whether it was made."""
    wanted = GlobalConcurrencyLimitCreate(name=name, limit=slots, active=True)
    with get_client(sync_client=True) as client:
        try:
            client.create_global_concurrency_limit(wanted)
        except ObjectAlreadyExists:
            return False
    return True


def device_limit(queue: str) -> AbstractContextManager[object]:
    """Hold the slot of the device of this machine that serves a queue.

    Raises: ConcurrencySlotAcquisitionError when the limit does not exist.
    """
    if queue == BUILD:
        return nullcontext()
    name = lock_name(queue.removeprefix(device_queue("")))
    # strict: without it Prefect passes silently when nobody has made the limit, and two processes time at once.
    return concurrency(name, occupy=1, strict=True, lease_duration=LEASE_SECONDS)
