"""The table of features: names, order and scaling. `FEATURE_VERSION` increases when the meaning of a column changes.

A program has one row per statement. Every value but the flags in `FLAG_NAMES` is scaled by log2(x + 1).

* operations: how often each kind of operation runs in total
* annotations: number, product and innermost length of vector, unrolled and parallel loops, and their positions
* buffers: the written buffer, then the buffers read in reading order: volume, cache lines, reuse, stride
* intensity: operations per touched byte at ten points between the innermost loop and the whole statement
* allocation: size and number of the buffers inside other statements' loops, and how much is computed twice
* nest: trip count, number of loops, unroll limit
* tile: the register tile: rows, vectors, accumulators, idle lanes, loads and conversions per step, lines that evict
  each other from the first cache, innermost reduction, whether that runs in lanes, how many products a dot product sums
* parallel: chunks, balance and grain of the parallel loop
* memory: bytes touched inside each group of loops, and bytes moved with a cache of 16 KiB ... 8 MiB
* estimate: cycles of the analytical cost model: arithmetic, memory, the statement, the whole program, its share of it,
  of a CPU core or of a GPU
* gpu: blocks, threads, virtual threads, bytes of shared memory and registers of the kernel, resident warps, waves of
  blocks, bytes of the requested sectors, bank conflicts (words in the busiest bank's queue); 0 on a CPU

Intended differences from Ansor's table, some columns of which are dead or wrong:

* `float_mad` and `int_mad` count real multiply-adds; there these columns are always 0.
* Operations are those of the value that is computed: index arithmetic is excluded, as it is hoisted, and a choice
  (`if_then_else`) is a selection, not a function. There both are counted with the arithmetic.
* A row is a statement, in program order; the initialization of a reduction is not a statement. There a row is a buffer,
  in the order of a hash table, and its counts mix several stores.
* `unroll`, `vec` and `parallel` columns of a statement without such loops are 0; there an earlier store's may remain.
* Positions are six flags (inner, middle, outer of the spatial and of the reduction loops) that may hold together; there
  only "none" and "mixed" occur.
* Loops of extent 1 are ignored: they count nowhere, carry no reuse and hide no stride.
* `lines` skips each loop that does not change the address by its own extent, not by the extent of the innermost loop.
* `unique_lines` uses the region of its own buffer and multiplies full dimensions into one run of memory.
* A region counts the elements that are touched: a stride of 2 does not count the gaps, a hull never exceeds the buffer.
* Strides come from the whole linear form, with true coefficients. A buffer read at one fixed address has stride 0.
* Buffers keep their slots, the written one first, so a column means the same buffer in all programs of a task.
* Packed weights have the addresses that the packed array has; there the model never sees the layout that is measured.
* For integer computations, intensity is that of the integer operations; there it is always 0.
* A scalar that is read has stride 0, as what is read at one address; a result of one element is written at stride 0.
"""

from collections.abc import Iterator

from retune.compiler.schedule.counts import COUNTED

FEATURE_VERSION = 6
"""Version of the table; a cost model that was trained on another version cannot be used."""

# Five buffers, and ten points of the curve below, as in Ansor.
BUFFERS = 5
"""Buffers of a statement with columns."""

INTENSITY_POINTS = 10
"""Samples of the arithmetic intensity curve."""

GROUPS = 5
"""Groups of loops of one kind, from the innermost, with a working set column."""

CACHES = {"16k": 2**14, "64k": 2**16, "256k": 2**18, "1m": 2**20, "8m": 2**23}
"""Capacities in bytes at which memory traffic is estimated: sample points of a curve, not the machine's caches."""

POSITIONS = ("inner_spatial", "middle_spatial", "outer_spatial", "inner_reduce", "middle_reduce", "outer_reduce")

OPERATION_NAMES = COUNTED
ANNOTATION_NAMES = tuple(
    f"{annotation}_{what}"
    for annotation in ("vec", "unroll", "parallel")
    for what in ("num", "prod", "len", *POSITIONS)
)
BUFFER_FIELDS = (
    "read", "write", "read_write", "bytes", "unique_bytes", "lines", "unique_lines", "loop_multiple_read",
    "serial_multiple_read_write", "no_reuse", "reuse_dis_iter", "reuse_dis_bytes", "reuse_ct", "bytes_d_reuse_ct",
    "unique_bytes_d_reuse_ct", "lines_d_reuse_ct", "unique_lines_d_reuse_ct", "stride", "packed", "local",
)  # fmt: skip
BUFFER_NAMES = tuple(f"B{index}.{field}" for index in range(BUFFERS) for field in BUFFER_FIELDS)
INTENSITY_NAMES = tuple(f"arith_intensity_curve_{point}" for point in range(INTENSITY_POINTS))
ALLOCATION_NAMES = ("alloc_size", "alloc_prod", "alloc_outer_prod", "alloc_inner_prod", "alloc_recompute")
NEST_NAMES = ("outer_prod", "num_loops", "auto_unroll_max_step", "inexact")
TILE_NAMES = (
    "tile_rows", "tile_vectors", "tile_accumulators", "tile_remainder_lanes", "tile_idle_lanes", "tile_fits",
    "tile_spilled", "tile_reduction", "tile_accumulator_moves", "tile_straight_line", "tile_vector_loads",
    "tile_broadcasts", "tile_gathers", "tile_conversions", "tile_conflicts", "tile_loads_per_fma",
    "tile_vector_operations", "tile_in_lanes", "tile_dot_width",
)  # fmt: skip
PARALLEL_NAMES = ("parallel_chunks", "parallel_imbalance", "parallel_threads", "parallel_grain", "parallel_time")
MEMORY_NAMES = (
    *(f"working_set_{group}" for group in range(GROUPS)),
    *(f"traffic_{size}" for size in CACHES),
    *(f"intensity_{size}" for size in CACHES),
)
ESTIMATE_NAMES = (
    "estimate_arithmetic", "estimate_memory", "estimate_cycles", "estimate_program", "estimate_share",
)  # fmt: skip
GPU_NAMES = (
    "is_gpu",
    *(f"gpu_blocks_{axis}" for axis in "xyz"),
    *(f"gpu_threads_{axis}" for axis in "xyz"),
    "gpu_vthreads",
    "gpu_shared_bytes",
    "gpu_local_bytes",
    "gpu_registers",
    "gpu_active_warps",
    "gpu_waves",
    "gpu_sector_bytes",
    "gpu_bank_conflicts",
    "gpu_tensor",
)

FEATURE_NAMES = (
    *OPERATION_NAMES, *ANNOTATION_NAMES, *BUFFER_NAMES, *INTENSITY_NAMES, *ALLOCATION_NAMES, *NEST_NAMES, *TILE_NAMES,
    *PARALLEL_NAMES, *MEMORY_NAMES, *ESTIMATE_NAMES, *GPU_NAMES,
)  # fmt: skip
"""Names of the columns, in order."""

# The flags among the fields above: kind of access, kind of reuse, and where the buffer is stored.
_FLAG_ENDINGS = (*BUFFER_FIELDS[:3], *BUFFER_FIELDS[7:10], *BUFFER_FIELDS[18:])


def _flags() -> Iterator[str]:
    for name in FEATURE_NAMES:
        head, _, tail = name.partition("_")
        is_position = head in ("vec", "unroll", "parallel") and tail in POSITIONS
        is_buffer_flag = name[:1] == "B" and name.partition(".")[2] in _FLAG_ENDINGS
        if is_position or is_buffer_flag or name in ("inexact", "tile_fits", "tile_in_lanes", "is_gpu", "gpu_tensor"):
            yield name


FLAG_NAMES = frozenset(_flags())
"""Columns of 0 or 1, which are not scaled."""

INDEX = {name: column for column, name in enumerate(FEATURE_NAMES)}
"""Column of each name."""
