"""Transform steps: one class per step, found by its tag when a log is read."""

from retune.compiler.schedule.steps.annotate import Annotate, Pragma, StorageAlign
from retune.compiler.schedule.steps.base import Step, dump_steps, load_steps, step_from_row, steps_of
from retune.compiler.schedule.steps.loops import (
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Reorder,
    Split,
    split_loop,
)
from retune.compiler.schedule.steps.place import ComputeAt, ComputeInline, ComputeRoot
from retune.compiler.schedule.steps.stages import CacheRead, CacheWrite, Rfactor
from retune.compiler.schedule.steps.tensor_core import AsMatmul, Pipeline

__all__ = [
    "Annotate",
    "AsMatmul",
    "CacheRead",
    "CacheWrite",
    "ComputeAt",
    "ComputeInline",
    "ComputeRoot",
    "FollowFusedSplit",
    "FollowSplit",
    "Fuse",
    "Pipeline",
    "Pragma",
    "Reorder",
    "Rfactor",
    "Split",
    "Step",
    "StorageAlign",
    "dump_steps",
    "load_steps",
    "split_loop",
    "step_from_row",
    "steps_of",
]
