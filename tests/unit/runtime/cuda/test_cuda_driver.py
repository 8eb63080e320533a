"""What is asked of NVIDIA's packages, by stand-ins for them that have the same names: no GPU is needed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.cuda import driver as cuda
from retune.compiler.runtime.cuda.driver_interface import Driver

H200 = {
    "memory_clock_rate": 3201000,
    "global_memory_bus_width": 6144,
    "multiprocessor_count": 132,
    "clock_rate": 1980000,
    "l2_cache_size": 50 << 20,
    "max_registers_per_multiprocessor": 65536,
    "max_shared_memory_per_multiprocessor": 228 << 10,
    "reserved_shared_memory_per_block": 1024,
    "max_threads_per_multiprocessor": 2048,
    "max_blocks_per_multiprocessor": 32,
    "max_shared_memory_per_block": 48 << 10,
    "max_shared_memory_per_block_optin": 227 << 10,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}


class Core:
    """`cuda.core`, which remembers what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.Device = type("Device", (), {"__new__": self.opened})
        self.ObjectCode = SimpleNamespace(from_cubin=self.loaded, from_ptx=self.loaded)

    def opened(self, _: type, number: int) -> SimpleNamespace:
        return self.device(number)

    def device(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(
            device_id=number,
            name="H200",
            compute_capability=(9, 0),
            properties=SimpleNamespace(**H200),
            default_stream="default",
            set_current=lambda: self.asked.append(("current", number)),
            create_stream=lambda: SimpleNamespace(handle=7, sync=lambda: None),
        )

    def loaded(self, code: bytes) -> SimpleNamespace:
        self.asked.append(("load", code))
        return SimpleNamespace(get_kernel=lambda name: SimpleNamespace(handle=f"handle of {name}"))

    def LaunchConfig(self, **given: Any) -> dict[str, Any]:  # noqa: N802 - the name of the package
        return given

    def launch(self, _: Any, config: dict[str, Any], kernel: Any, *given: Any) -> None:
        self.asked.append(("launch", config, kernel.handle, given))


class Bindings:
    """`cuda.bindings.driver`."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="most shared")

    def __init__(self, core: Core) -> None:
        self.core = core

    def cuInit(self, _: int) -> tuple[int]:  # noqa: N802
        return (0,)

    def cuDeviceGetCount(self) -> tuple[int, int]:  # noqa: N802
        return 0, 1

    def cuCtxGetCurrent(self) -> tuple[int, int]:  # noqa: N802
        return 0, 100

    def cuKernelSetAttribute(self, *given: Any) -> tuple[int]:  # noqa: N802
        self.core.asked.append(("set", *given))
        return (0,)


def opened() -> tuple[Core, Driver]:
    """The driver with the first device open."""
    core = Core()
    driver = cuda._CoreDriver(core, Bindings(core))
    driver.open(0)
    return core, driver


def test_a_block_may_have_what_the_device_gives_when_asked() -> None:
    _, driver = opened()
    (device,) = driver.devices()
    assert device.max_shared_memory_per_block == 227 << 10
    assert (device.arch, device.facts.multiprocessors, device.facts.bandwidth) == ("sm_90a", 132, 3201e6 * 2 * 768)


def test_shared_memory_is_asked_for_once_and_given_at_every_launch() -> None:
    core, driver = opened()
    kernels = driver.load(b"code", "cubin", {"large": 100 << 10, "small": 0})
    assert core.asked[-1] == ("set", "most shared", 100 << 10, "handle of large", 0)
    assert [what for what, *_ in core.asked].count("set") == 1
    stream = driver.stream()
    driver.launch(stream, kernels["large"], (4, 1, 1), (32, 1, 1), [256, 512], 100 << 10)
    driver.launch(stream, kernels["small"], (4, 1, 1), (32, 1, 1), [256])
    (_, first, one, given), (_, second, *_) = core.asked[-2:]
    assert first == {"grid": (4, 1, 1), "block": (32, 1, 1), "shmem_size": 100 << 10}
    assert (one, given) == ("handle of large", (np.uint64(256), np.uint64(512)))
    assert second["shmem_size"] == 0
    assert [what for what, *_ in core.asked].count("set") == 1


def test_more_shared_memory_than_the_device_has_is_refused_in_words() -> None:
    _, driver = opened()
    with pytest.raises(DeviceError, match="large needs 263168 bytes of shared memory in a block, H200 has 232448:"):
        driver.load(b"code", "ptx", {"large": 257 << 10})
