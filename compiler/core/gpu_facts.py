"""`GpuFacts`: hardware parameters of NVIDIA GPUs, by architecture or as the driver reports them. Immutable.

The numbers of an architecture are those of its best-known device, for estimates without a device.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import Array

# Of every GPU since compute capability 7.0, by the tables of NVIDIA's CUDA programming guide and its occupancy
# calculator: registers are allotted to warps, shared memory to blocks, each in these units.
_WARP = 32
_PARTITIONS = 4
"""Parts of a multiprocessor, each with its own registers and every fourth warp."""
_REGISTER_UNIT = 256
_SHARED_UNIT = 128
# Eight bits of an instruction name a register; of their 256 values one, RZ, reads as zero.
MOST_REGISTERS = 255
"""Registers that a thread can have."""

STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have on every GPU without asking at launch."""

_Count = int | Array


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Throughput and capacity of a GPU; from `lanes` on, of each multiprocessor."""

    multiprocessors: int
    clock: float
    """Cycles a second."""
    bandwidth: float
    """Bytes of memory traffic a second."""
    cache: int
    """Bytes of the shared cache."""
    lanes: int = 128
    """Float32 multiply-adds that start in a cycle."""
    tensor: int = 0
    """Multiply-adds of halves, summed in float32, that the tensor cores do in a cycle for the instructions of a warp.
    An H100 does 2048 for those of four warps together, and five eighths of that for these.
    """
    group_tensor: int = 0
    """The same for instructions of four warps, with factors in shared memory; 0 where the architecture has none."""
    registers: int = 65536
    """Registers of 32 bits."""
    shared: int = 100 * 1024
    """Bytes of shared memory."""
    reserved: int = 1024
    """Bytes of it that every block costs in addition to its own."""
    threads: int = 2048
    """Resident threads at most."""
    blocks: int = 32
    """Resident blocks at most."""

    @property
    def most_shared(self) -> int:
        """Bytes of shared memory that one block can be launched with."""
        return self.shared - self.reserved

    def resident(self, threads: _Count, registers: _Count, shared: _Count) -> NDArray[np.int64]:
        """Blocks that a multiprocessor runs at a time, each of `threads` threads with `registers` 32-bit registers a
        thread and `shared` bytes: 0 for a block that does not fit. Numbers, or arrays that broadcast.
        """
        warps = -(-np.asarray(threads, np.int64) // _WARP)
        warp_registers = -(-np.asarray(registers, np.int64) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        block_bytes = -(-(np.asarray(shared, np.int64) + self.reserved) // _SHARED_UNIT) * _SHARED_UNIT
        # Every partition has a quarter of the registers and gets whole warps of its own.
        register_warps = self.registers // np.maximum(warp_registers, 1) // _PARTITIONS * _PARTITIONS
        # Occupancy as NVIDIA defines it: the tightest of threads, registers, shared memory and block slots.
        fitting = np.minimum(self.threads // (warps * _WARP), register_warps // warps)
        fitting = np.minimum(np.minimum(fitting, self.shared // np.maximum(block_bytes, 1)), self.blocks)
        return np.asarray(np.where(np.asarray(registers) > MOST_REGISTERS, 0, fitting))

    def most_registers(self, threads: _Count) -> NDArray[np.int64]:
        """The most registers that each thread of a block of `threads` can have."""
        warps = -(-np.asarray(threads, np.int64) // (_WARP * _PARTITIONS)) * _PARTITIONS
        # Rounded down: `resident` rounds up, and a block of the result must fit.
        per_thread = self.registers // warps // _REGISTER_UNIT * _REGISTER_UNIT // _WARP
        return np.asarray(np.minimum(per_thread, MOST_REGISTERS))


# NVIDIA's data sheets and architecture white papers; the clocks are the boost clocks given there.
_KNOWN = {
    70: GpuFacts(80, 1.53e9, 900e9, 6 << 20, 64, shared=96 << 10, reserved=0),
    75: GpuFacts(40, 1.59e9, 320e9, 4 << 20, 64, shared=64 << 10, reserved=0, threads=1024, blocks=16),
    80: GpuFacts(108, 1.41e9, 1555e9, 40 << 20, 64, 1024, shared=164 << 10),
    86: GpuFacts(82, 1.70e9, 936e9, 6 << 20, tensor=256, threads=1536, blocks=16),
    89: GpuFacts(128, 2.52e9, 1008e9, 72 << 20, tensor=256, threads=1536, blocks=24),
    90: GpuFacts(132, 1.83e9, 3350e9, 50 << 20, tensor=1280, shared=228 << 10),
}
"""By compute capability: V100, T4, A100, RTX 3090, RTX 4090, H100 SXM."""

GROUP_ARCH = "sm_90a"
"""The architecture with instructions of warpgroups (wgmma); no other has them, not even sm_90."""

_GROUP_TENSOR = 2048
"""What an H100 does with them."""

_USUAL = 80

USUAL_ARCH = f"sm_{_USUAL}"
"""The architecture of a GPU that is not named."""


def facts_of(arch: str) -> GpuFacts:
    """The facts of the newest known architecture up to `arch`; of an A100 without a name."""
    capability = capability_of(arch) or _USUAL
    # Near enough for an estimate; limits of code are looked up by the exact architecture, see `most_shared_of`.
    facts = _KNOWN[max((known for known in _KNOWN if known <= capability), default=min(_KNOWN))]
    return replace(facts, group_tensor=group_tensor_of(arch))


def group_tensor_of(arch: str) -> int:
    return _GROUP_TENSOR if arch == GROUP_ARCH else 0


def arch_of(capability: tuple[int, int]) -> str:
    """The architecture that code for a device of `capability` is best compiled for."""
    name = f"sm_{capability[0]}{capability[1]}"
    return GROUP_ARCH if f"{name}a" == GROUP_ARCH else name


def most_shared_of(arch: str) -> int:
    """Bytes of shared memory that a block may use on every GPU of `arch`; if unknown, what all GPUs have."""
    facts = _KNOWN.get(capability_of(arch))
    return STATIC_SHARED if facts is None else facts.most_shared


def runs_code(here: str, made_for: str, *, assembled: bool) -> bool:
    """True if a GPU of architecture `here` can run code built for `made_for`. PTX runs on the same or any later
    architecture, a cubin (`assembled`) on the same major version, `sm_90a` code on exactly that. `""` runs anywhere.
    """
    own, required = capability_of(here), capability_of(made_for)
    # NVIDIA's compatibility: the driver assembles PTX for any later GPU, a cubin runs only on the same major version,
    # and code specific to an architecture (suffix a) on no other.
    if not made_for.removeprefix("sm_").isdigit() and made_for:
        return own == required
    return required <= own and (not assembled or required // 10 == own // 10)


def capability_of(arch: str) -> int:
    """The compute capability of an architecture: 90 for sm_90 and sm_90a, 0 for none."""
    digits = "".join(letter for letter in arch.removeprefix("sm_") if letter.isdigit())
    return int(digits) if digits else 0


def lanes_of(capability: tuple[int, int]) -> int:
    """Float32 multiply-adds that a multiprocessor of `capability` starts in a cycle."""
    # The A100, 8.0, is the last with 64.
    return 64 if capability < (8, 6) else 128
