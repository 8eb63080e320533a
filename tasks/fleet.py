"""In: the fleet that a run is to use. Out: the way to its workers, and what its device is. Always: leaves nothing in
the storage that the fleet shares.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.driver.bench import DeviceFacts
from retune.compiler.measure.fleet import DESCRIBE_VERB, asked, device_queue
from retune.storage.errands import ErrandStore
from retune.tasks.courier import StoreCourier
from retune.tasks.plan import FleetPlan
from retune.tasks.wakes import wake_of


@contextmanager
def open_courier(plan: FleetPlan) -> Iterator[StoreCourier]:
    """The way to the workers, for as long as the block lasts. Raises: StoreError, OptionError."""
    store = ErrandStore(plan.storage)
    courier = StoreCourier(store, wake_of(plan.kind, store))
    try:
        yield courier
    finally:
        courier.close()


@task(name="describe-device", task_run_name="describe-{device}", cache_policy=NO_CACHE)
def describe_device(device: str, plan: FleetPlan) -> DeviceFacts:
    """What the worker of a device says of its machine. Raises: MeasureError when nobody answers."""
    with open_courier(plan) as courier:
        return DeviceFacts(**asked(courier, device_queue(device), DESCRIBE_VERB, {}))
