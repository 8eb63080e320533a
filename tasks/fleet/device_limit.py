"""The limit of a device on a Prefect server: a global concurrency limit with one slot, which people see and can close.

While the slot is taken, or somebody set the limit to 0, nothing is timed on the device. A deleted limit is an error.
"""

from contextlib import AbstractContextManager, nullcontext

from prefect import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists

from retune.compiler.measure.processes.device_lock import lock_name
from retune.compiler.measure.remote.fleet import BUILD, device_queue

LEASE_SECONDS = 60.0
"""How long a slot stays taken after its holder was killed; the shortest lease that Prefect accepts."""


def ensure_limit(name: str) -> bool:
    """Create the limit `name` unless it exists, with any number of slots; return whether it was created."""
    wanted = GlobalConcurrencyLimitCreate(name=name, limit=1, active=True)
    with get_client(sync_client=True) as client:
        try:
            client.create_global_concurrency_limit(wanted)
        except ObjectAlreadyExists:
            return False
    return True


def device_limit(queue: str) -> AbstractContextManager[object]:
    """Hold the slot of this machine's device that a work queue times on; a queue of builds needs none.

    Raises: ConcurrencySlotAcquisitionError when the limit does not exist.
    """
    if queue == BUILD:
        return nullcontext()
    # A device's queue is called `device_queue(key)`: a prefix and the device's key.
    name = lock_name(queue.removeprefix(device_queue("")))
    # strict: without it Prefect passes silently when nobody has made the limit, and two processes time at once.
    return concurrency(name, occupy=1, strict=True, lease_duration=LEASE_SECONDS)
