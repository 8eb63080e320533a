"""Findings, and the checks of the machine: files of the Linux kernel, a trial kernel, the CUDA driver.

A missing file, as in a virtual machine, is no fault: the finding says that the fact is unknown.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from retune.compiler import te
from retune.compiler.codegen.nvidia.ptxas import assembler
from retune.compiler.core import config
from retune.compiler.core.errors import RetuneError, without_passwords
from retune.compiler.driver.build import build
from retune.compiler.runtime.cuda.driver import gpus, why_not


class Verdict(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, what was found, and what to do about it, if anything."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        """Found are URLs too: their passwords are not shown."""
        object.__setattr__(self, "found", without_passwords(self.found))


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, Verdict.OK, found)


def warn(name: str, found: str, advice: str) -> Finding:
    """Retune works, but worse than it could."""
    return Finding(name, Verdict.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Finding:
    """Retune cannot work like this."""
    return Finding(name, Verdict.FAIL, found, advice)


CPUS = Path("/sys/devices/system/cpu")
NVIDIA = Path("/proc/driver/nvidia/version")

# The load counts processes that wait for a disk, too, and decays over a minute: some of it is normal.
BUSY_LOAD = 0.25
"""A load average above this share of the cores spoils timings."""


def cores(cpus: Path = CPUS, quota: float | None = None) -> Finding:
    """How many CPUs may be used, and what excludes the others; `quota` is by default that of this process."""
    usable, total = config.usable_cpus(), os.cpu_count() or 1
    text = f"{len(usable)} of {total} CPUs may be used ({config.device_name()})"
    quota = quota or config.cpu_quota()
    if quota is not None and quota < len(usable):
        return warn(
            "cores",
            f"{text}, but a quota leaves {quota:g} at a time: {max(1, int(quota))} by default for a network's threads",
            "to use more, raise the quota (docker --cpus, systemd CPUQuota)",
        )
    siblings = {_text(cpus / f"cpu{number}" / "topology" / "thread_siblings_list") or str(number) for number in usable}
    if len(siblings) < len(usable):
        return warn(
            "cores",
            f"{text}; they are {len(siblings)} cores with several hardware threads each",
            f"hardware threads of one core disturb each other's timing: tune with --threads {len(siblings)}",
        )
    if len(usable) < total:
        return warn("cores", text, "this process is bound to some (taskset, cpuset): unbind it to use the others")
    return ok("cores", text)


def frequency(cpus: Path = CPUS) -> Finding:
    """Whether the clock is steady."""
    governor = _text(cpus / "cpu0" / "cpufreq" / "scaling_governor")
    if not governor:
        return ok("frequency", "not controlled from here, as in most virtual machines")
    turbo = {"0": "turbo on", "1": "turbo off"}.get(_text(cpus / "intel_pstate" / "no_turbo"), "")
    turbo = turbo or {"1": "boost on", "0": "boost off"}.get(_text(cpus / "cpufreq" / "boost"), "boost unknown")
    text = f"governor {governor}, {turbo}"
    if governor in ("performance", "schedutil"):
        return ok("frequency", text)
    return warn(
        "frequency", text, "clocks that rise and fall make times rough: `cpupower frequency-set -g performance`"
    )


def load(average: float | None = None) -> Finding:
    """Whether other programs are at work."""
    busy = os.getloadavg()[0] if average is None else average
    text = f"{busy:.2f} processes wanted to run at a time in the last minute"
    if busy > BUSY_LOAD * config.usable_cores():
        return warn("load", text, "other programs spoil timings: stop them, or tune later")
    return ok("load", text)


def code_generation() -> Finding:
    """Whether a kernel can be built, loaded and run, and whether it computes what it should."""
    a, b = (te.placeholder((32, 32), name=name) for name in "AB")
    axis = te.reduce_axis(32, "k")
    product = te.compute((32, 32), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis), "C")
    began = time.perf_counter()
    try:
        kernel = build([a, b, product])
        left, right = np.random.default_rng(0).random((2, 32, 32), np.float32)
        (result,) = kernel.outputs()
        kernel(*kernel.prepared(left, right), result, threads=config.usable_cores())
    except RetuneError as error:
        return fail("compiler", str(error), "install what it names: libgomp1, or llvmlite once more")
    seconds = time.perf_counter() - began
    # Sums of 32 terms of [0, 1): some 32 roundings of 6e-8 are far below.
    if not np.allclose(result, left @ right, rtol=1e-4):
        return fail("compiler", "a matrix product came out wrong", "report this: code generation is broken here")
    return ok("compiler", f"{config.llvm_version()}: a kernel was built and run in {seconds * 1e3:.0f} ms")


def cuda(version: Path = NVIDIA) -> Finding:
    """Whether there is an NVIDIA GPU, and what is missing to use it.

    A usable GPU is reported even without `version`, a file that containers may lack.
    """
    tools = "" if assembler() else "; no ptxas on the path, which assembles and checks generated code"
    missing = why_not()
    if not missing:
        return ok("CUDA", f"{', '.join(f'{each.name} ({each.arch})' for each in gpus())}{tools}")
    driver_version = _text(version).partition("\n")[0]
    if not driver_version:
        return ok("CUDA", f"no NVIDIA driver: CPUs only{tools}")
    return warn("CUDA", driver_version, missing)


def everything() -> Iterable[Finding]:
    """All findings about the machine, one after the other."""
    for check in (cores, frequency, load, code_generation, cuda):
        yield check()


def _text(path: Path) -> str:
    """The content of a small file; empty without the file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
