"""Converts the description of kernels to JSON values and back, without the object code."""

from dataclasses import asdict
from typing import Any

from retune.compiler.core.dtype import number_type
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.core.packing import Packing
from retune.compiler.runtime.artifact import ArgSpec, DeviceCode, ExternBuffer, ExternCall, KernelArtifact, KernelLaunch


def kernel_row(kernel: KernelArtifact) -> dict[str, Any]:
    """The description of a kernel without its object code."""
    return {
        "name": kernel.name,
        "target": kernel.target,
        "workspace_bytes": kernel.workspace_bytes,
        "args": [asdict(arg) for arg in kernel.args],
        "calls": [_call_row(call) for call in kernel.calls],
        **({} if kernel.device is None else {"device": asdict(kernel.device)}),
    }


def _call_row(call: ExternCall) -> dict[str, Any]:
    args = [asdict(arg) if isinstance(arg, ExternBuffer) else arg for arg in call.args]
    return {"symbol": call.symbol, "function": call.function, "args": args}


def _call_of(row: JsonObject) -> ExternCall:
    args = tuple(
        ExternBuffer(tuple(int(extent) for extent in arg["shape"]), str(arg["dtype"]), bool(arg["writable"]))
        if isinstance(arg, dict)
        else arg
        for arg in row["args"]
    )
    return ExternCall(row["symbol"], row["function"], args)


def kernel_of(row: JsonObject, object_code: bytes) -> KernelArtifact:
    """The kernel of a row. Raises: KeyError, TypeError or ValueError for an invalid row."""
    args = tuple(
        ArgSpec(
            name=arg["name"],
            shape=tuple(int(extent) for extent in arg["shape"]),
            dtype=number_type(arg["dtype"]),
            is_output=bool(arg["is_output"]),
            packing=None if arg["packing"] is None else _packing_of(arg["packing"]),
        )
        for arg in row["args"]
    )
    calls = tuple(_call_of(call) for call in row.get("calls", ()))
    device = _device_of(row["device"]) if "device" in row else None
    return KernelArtifact(row["name"], object_code, args, int(row["workspace_bytes"]), row["target"], calls, device)


def _device_of(row: JsonObject) -> DeviceCode:
    launches = []
    for each in row["launches"]:
        grid, block = ((int(x), int(y), int(z)) for x, y, z in (each["grid"], each["block"]))
        # `shared` and `ptx` are newer: older files lack them.
        registers, spilled, shared = int(each["registers"]), int(each["spilled"]), int(each.get("shared", 0))
        launches.append(KernelLaunch(each["name"], grid, block, registers, spilled, shared))
    starts = tuple(int(start) for start in row["workspace"])
    return DeviceCode(str(row["kind"]), tuple(launches), starts, str(row.get("ptx", "")))


def _packing_of(row: JsonObject) -> Packing:
    # `extents` is newer: older files lack it.
    dims, order, extents = (tuple(map(int, numbers)) for numbers in (row["dims"], row["order"], row.get("extents", ())))
    return Packing(dims, order, extents)
