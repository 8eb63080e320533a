"""Transform steps: one class per step, found by its tag when a log is read.

A log has each step as a JSON list, as in TVM's logs, which lack `BL`, `MM`, `PL` and `SL`. Stages and loops are
numbered at the moment of the step.

| function | in a log |
|---|---|
| `parallel` `vectorize` `unroll` `bind` `tensorize` | `["AN", stage, loop, annotation]` |
| `fuse` | `["FU", stage, [loops]]` |
| `pragma` | `["PR", stage, loop, text]` |
| `reorder` | `["RE", stage, [order]]` |
| `split` | `["SP", stage, loop, extent, [lengths], inner_to_outer]` |
| `follow_split` | `["FSP", stage, loop, step, n_split]` |
| `follow_fused_split` | `["FFSP", stage, loop, [steps], level, by_factor]` |
| `storage_align` | `["SA", stage, loop, factor, offset]` |
| `compute_at` | `["CA", stage, target, loop]` |
| `compute_inline`, `compute_root` | `["CI", stage]`, `["CR", stage]` |
| `cache_read` | `["CHR", stage, scope, [readers]]`; the copy is stage `stage + 1` |
| `cache_write` | `["CHW", stage, scope]`; the new stage gets the number `stage` |
| `rfactor` | `["RF", stage, loop, position]`; the new stage gets the number `stage` |
| `as_matmul` | `["MM", stage, kind]`; three new stages from `stage` on; `kind`: `f16`, `bf16`, `tf32` |
| `pipeline` | `["PL", stage, loop, depth]` |
| the classes `Block`, `SizeLimit` | `["BL", stage, axis, points]`, `["SL", stage, axis, most]` |

Annotations: 0 none, 1 unroll, 2 vectorize, 3 parallel, 4 vthread, 5 blockIdx.x, 6 threadIdx.x, 7 blockIdx.y,
8 threadIdx.y, 9 blockIdx.z, 10 threadIdx.z, 11 tensorize. A CPU target rejects 4 to 11.
"""

from retune.compiler.schedule.steps.annotate import UNROLL_PRAGMA as UNROLL_PRAGMA
from retune.compiler.schedule.steps.annotate import Annotate, Pragma, StorageAlign
from retune.compiler.schedule.steps.base import Step, dump_steps, load_steps, step_from_row, steps_of
from retune.compiler.schedule.steps.block import Block, SizeLimit, programs_of
from retune.compiler.schedule.steps.loops import FollowFusedSplit, FollowSplit, Fuse, Reorder, Split, split_loop
from retune.compiler.schedule.steps.place import ComputeAt, ComputeInline, ComputeRoot
from retune.compiler.schedule.steps.stages import CacheRead, CacheWrite, Rfactor
from retune.compiler.schedule.steps.tensor_core import AsMatmul, Pipeline

__all__ = [
    "Annotate", "AsMatmul", "Block", "CacheRead", "CacheWrite", "ComputeAt", "ComputeInline", "ComputeRoot",
    "FollowFusedSplit", "FollowSplit", "Fuse", "Pipeline", "Pragma", "Reorder", "Rfactor", "SizeLimit", "Split", "Step",
    "StorageAlign", "dump_steps", "load_steps", "programs_of", "split_loop", "step_from_row", "steps_of",
]  # fmt: skip
