"""A plug-in execution provider for ONNX Runtime: the operators of a library, found in the model they were made from.

The library exports `CreateEpFactories` and `ReleaseEpFactory`. Its provider knows a region of a graph by a hash of each
node: domain and type, names of what it reads and writes, attributes, and content of constants. A region whose nodes
are all there becomes one node of the session, which calls the function that a custom operator would call. Everything
else stays with ONNX Runtime, with a warning in the session's log when a region is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.compiler.codegen.custom_op_support import support_text
from retune.compiler.codegen.custom_ops import (
    ConstantTable,
    CustomOp,
    Texts,
    compute_text,
    cpu_message,
    guard_text,
)
from retune.compiler.codegen.provider_support import VERSION, provider_support_text

ENTRIES = ("CreateEpFactories", "ReleaseEpFactory")

_FACTORY = (
    "provider_name", "vendor", "devices", "create_provider", "release", "vendor_id", "provider_version", None,
    "no_allocator", "release", "no_transfer", "is_stream_aware", "no_stream",
)  # fmt: skip
"""`OrtEpFactory` of version 1.23, after its version. Ours has its name behind these, at byte 112."""

# Twelve pointers end at byte 104; the name is at 112 as in a factory, so that one function reads both.
_PROVIDER = ("provider_name", "capability", "compile", "release_computations", *(None,) * 8)
"""`OrtEp` of version 1.23, after its version. Ours has its name at byte 112, and the session's log at byte 120."""

_REGION = "{ i64, i64, i64, ptr, ptr }"
"""Of the table of regions: numbers of nodes, inputs and outputs; names of inputs and outputs; the function."""


@dataclass(frozen=True, slots=True)
class Region:
    """What a provider knows of the part of a model that an operator computes: the names of its inputs and outputs, in
    the order of the operator, and the hashes of its nodes.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    hashes: tuple[int, ...]


def provider_text(regions: Sequence[Region], ops: Sequence[CustomOp], table: ConstantTable) -> str:
    """The LLVM text of a provider, apart from kernels and constants; each region is computed by the operator at its
    place.
    """
    texts = Texts()
    return "\n".join(
        [
            support_text(),
            guard_text(ops),
            *(compute_text(place, op, table, texts) for place, op in enumerate(ops)),
            provider_support_text(),
            _tables(regions, texts),
            _capability(len(regions), sum(len(region.hashes) for region in regions), texts),
            _compile(len(regions), texts),
            _entries(cpu_message(ops), texts),
            *texts.lines,
        ]
    )


def _tables(regions: Sequence[Region], texts: Texts) -> str:
    """The tables of functions, of the hashes of all nodes, and of regions."""
    lines = [
        _text_function("vendor", texts.name("Retune")),
        _text_function("provider_version", texts.name("1.0.0")),
        _function_table("factory_table", _FACTORY),
        _function_table("provider_table", _PROVIDER),
    ]
    entries, hashes = [], []
    for place, region in enumerate(regions):
        names = (*region.inputs, *region.outputs)
        listed = ", ".join(f"ptr {texts.name(name)}" for name in names)
        lines.append(f"@retune.names{place} = internal constant [{len(names)} x ptr] [{listed}]")
        counts = f"i64 {len(region.hashes)}, i64 {len(region.inputs)}, i64 {len(region.outputs)}"
        entries.append(f"{_REGION} {{ {counts}, ptr @retune.names{place}, ptr @retune.compute{place} }}")
        # Owners are counted from 1: in the zeroed array of `_capability`, 0 says that a node is of no region.
        hashes += [f"{{ i64, i32 }} {{ i64 {number}, i32 {place + 1} }}" for number in region.hashes]
    lines.append(f"@retune.regions = internal constant [{len(entries)} x {_REGION}] [{', '.join(entries)}]")
    lines.append(f"@retune.hashes = internal constant [{len(hashes)} x {{ i64, i32 }}] [{', '.join(hashes)}]")
    return "\n".join(lines)


def _text_function(name: str, text: str) -> str:
    """A function that returns a text."""
    return f"define internal ptr @retune.{name}(ptr %factory) {{\n  ret ptr {text}\n}}"


def _function_table(name: str, functions: Sequence[str | None]) -> str:
    listed = ", ".join("ptr null" if each is None else f"ptr @retune.{each}" for each in functions)
    kind = f"[{len(functions)} x ptr]"
    return f"@retune.{name} = internal constant {{ i32, {kind} }} {{ i32 {VERSION}, {kind} [{listed}] }}"


def _capability(regions: int, hashes: int, texts: Texts) -> str:
    """The function that finds the regions in a graph, and has ONNX Runtime fuse each of them."""
    warning = texts.name(
        "Retune's provider does not find all parts of the network that its library was exported from: ONNX Runtime "
        "computes the others; use that model, with graph optimizations disabled"
    )
    nothing, own = texts.name(""), texts.name("GetCapability")
    return f"""
define internal ptr @retune.capability(ptr %provider, ptr %graph, ptr %support) {{
  %tally = alloca [{regions} x i64], align 8
  store [{regions} x i64] zeroinitializer, ptr %tally
  %parent = call ptr @get.Graph_GetParentNode(ptr %graph)
  %nested = icmp ne ptr %parent, null
  br i1 %nested, label %end, label %begin
begin:
  %count = call i64 @get.Graph_GetNumNodes(ptr %graph)
  %nodes = call ptr @list.Graph_GetNodes(ptr %graph, i64 %count)
  %room = add i64 %count, 1
  %owners = call ptr @calloc(i64 %room, i64 4)
  %chosen = call ptr @calloc(i64 %room, i64 8)
  br label %next
next:
  %n = phi i64 [ 0, %begin ], [ %n.next, %recorded ]
  %left = icmp ult i64 %n, %count
  br i1 %left, label %hash, label %fuse
hash:
  %node.at = getelementptr ptr, ptr %nodes, i64 %n
  %node = load ptr, ptr %node.at
  %value = call i64 @retune.hash_node(ptr %node)
  br label %search
search:
  %h = phi i64 [ 0, %hash ], [ %h.next, %differs ]
  %more = icmp ult i64 %h, {hashes}
  br i1 %more, label %compare, label %recorded
compare:
  %known.at = getelementptr {{ i64, i32 }}, ptr @retune.hashes, i64 %h
  %known = load i64, ptr %known.at
  %same = icmp eq i64 %known, %value
  %h.next = add i64 %h, 1
  br i1 %same, label %record, label %differs
differs:
  br label %search
record:
  %owner.from = getelementptr i8, ptr %known.at, i64 8
  %owner = load i32, ptr %owner.from
  %owner.at = getelementptr i32, ptr %owners, i64 %n
  store i32 %owner, ptr %owner.at
  %owner.place = sub i32 %owner, 1
  %tally.at = getelementptr i64, ptr %tally, i32 %owner.place
  %tally.old = load i64, ptr %tally.at
  %tally.new = add i64 %tally.old, 1
  store i64 %tally.new, ptr %tally.at
  br label %recorded
recorded:
  %n.next = add i64 %n, 1
  br label %next
fuse:
  %r = phi i64 [ 0, %next ], [ %r.next, %fused ]
  %taken = phi i64 [ 0, %next ], [ %taken.next, %fused ]
  %rest = icmp ult i64 %r, {regions}
  br i1 %rest, label %check, label %report
check:
  %region = getelementptr {_REGION}, ptr @retune.regions, i64 %r
  %needed = load i64, ptr %region
  %seen.at = getelementptr i64, ptr %tally, i64 %r
  %seen = load i64, ptr %seen.at
  %whole = icmp eq i64 %seen, %needed
  br i1 %whole, label %collect, label %fused
collect:
  %c = phi i64 [ 0, %check ], [ %c.next, %collected ]
  %k = phi i64 [ 0, %check ], [ %k.next, %collected ]
  %c.left = icmp ult i64 %c, %count
  br i1 %c.left, label %belongs, label %add
belongs:
  %c.owner.at = getelementptr i32, ptr %owners, i64 %c
  %c.owner = load i32, ptr %c.owner.at
  %c.owner.wide = zext i32 %c.owner to i64
  %r.owner = add i64 %r, 1
  %is.own = icmp eq i64 %c.owner.wide, %r.owner
  %c.node.at = getelementptr ptr, ptr %nodes, i64 %c
  %c.node = load ptr, ptr %c.node.at
  %c.to = getelementptr ptr, ptr %chosen, i64 %k
  store ptr %c.node, ptr %c.to
  br label %collected
collected:
  %step = zext i1 %is.own to i64
  %k.next = add i64 %k, %step
  %c.next = add i64 %c, 1
  br label %collect
add:
  %added = call ptr @ort.EpGraphSupportInfo_AddNodesToFuse(ptr %support, ptr %chosen, i64 %k, ptr @retune.fusion)
  call void @retune.fail(ptr %added)
  br label %fused
fused:
  %done = phi i64 [ 0, %check ], [ 1, %add ]
  %taken.next = add i64 %taken, %done
  %r.next = add i64 %r, 1
  br label %fuse
report:
  call void @free(ptr %chosen)
  call void @free(ptr %owners)
  call void @free(ptr %nodes)
  %complete = icmp eq i64 %taken, {regions}
  br i1 %complete, label %end, label %warn
warn:
  %log.at = getelementptr i8, ptr %provider, i64 120
  %log = load ptr, ptr %log.at
  %told = call ptr @ort.Logger_LogMessage(ptr %log, i32 2, ptr {warning}, ptr {nothing}, i32 0, ptr {own})
  call void @retune.fail(ptr %told)
  br label %end
end:
  %failure = call ptr @retune.take_failure()
  ret ptr %failure
}}"""


def _compile(regions: int, texts: Texts) -> str:
    """The function that hands out how to compute fused nodes; their outputs tell which region each is."""
    unknown = texts.name(
        "a fused node is no part of the network that the library of Retune's provider was exported from"
    )
    return f"""
define internal ptr @retune.computation(ptr %node) {{
  %inputs.count = call i64 @get.Node_GetNumInputs(ptr %node)
  %inputs = call ptr @list.Node_GetInputs(ptr %node, i64 %inputs.count)
  %outputs.count = call i64 @get.Node_GetNumOutputs(ptr %node)
  %outputs = call ptr @list.Node_GetOutputs(ptr %node, i64 %outputs.count)
  br label %next
next:
  %r = phi i64 [ 0, %0 ], [ %r.next, %other ]
  %left = icmp ult i64 %r, {regions}
  br i1 %left, label %try, label %end
try:
  %region = getelementptr {_REGION}, ptr @retune.regions, i64 %r
  %reads.at = getelementptr i8, ptr %region, i64 8
  %reads = load i64, ptr %reads.at
  %writes.at = getelementptr i8, ptr %region, i64 16
  %writes = load i64, ptr %writes.at
  %names.at = getelementptr i8, ptr %region, i64 24
  %names = load ptr, ptr %names.at
  %compute.at = getelementptr i8, ptr %region, i64 32
  %compute = load ptr, ptr %compute.at
  %places.count = add i64 %reads, %writes
  %room = add i64 %places.count, 5
  %made = call ptr @calloc(i64 %room, i64 8)
  store i32 {VERSION}, ptr %made
  %create.at = getelementptr i8, ptr %made, i64 8
  store ptr @retune.create_state, ptr %create.at
  %run.at = getelementptr i8, ptr %made, i64 16
  store ptr @retune.run, ptr %run.at
  %release.at = getelementptr i8, ptr %made, i64 24
  store ptr @retune.release_state, ptr %release.at
  %function.at = getelementptr i8, ptr %made, i64 32
  store ptr %compute, ptr %function.at
  %places = getelementptr i8, ptr %made, i64 40
  %read = call i1 @retune.find_places(ptr %names, i64 %reads, ptr %inputs, i64 %inputs.count, ptr %places)
  %to.names = getelementptr ptr, ptr %names, i64 %reads
  %to.places = getelementptr i64, ptr %places, i64 %reads
  %last = call i1 @retune.find_places(ptr %to.names, i64 %writes, ptr %outputs, i64 %outputs.count, ptr %to.places)
  %as.many = icmp eq i64 %writes, %outputs.count
  %both = and i1 %read, %last
  %fits = and i1 %both, %as.many
  br i1 %fits, label %end, label %other
other:
  call void @free(ptr %made)
  %r.next = add i64 %r, 1
  br label %next
end:
  %computation = phi ptr [ null, %next ], [ %made, %try ]
  call void @free(ptr %inputs)
  call void @free(ptr %outputs)
  ret ptr %computation
}}

define internal ptr @retune.compile(ptr %provider, ptr %graphs, ptr %nodes, i64 %count, ptr %found, ptr %contexts) {{
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %known ]
  %left = icmp ult i64 %n, %count
  br i1 %left, label %find, label %done
find:
  %node.at = getelementptr ptr, ptr %nodes, i64 %n
  %node = load ptr, ptr %node.at
  %computation = call ptr @retune.computation(ptr %node)
  %to = getelementptr ptr, ptr %found, i64 %n
  store ptr %computation, ptr %to
  %missing = icmp eq ptr %computation, null
  br i1 %missing, label %unknown, label %known
known:
  %n.next = add i64 %n, 1
  br label %next
unknown:
  %refused = call ptr @ort.CreateStatus(i32 1, ptr {unknown})
  call void @retune.fail(ptr %refused)
  br label %done
done:
  %failure = call ptr @retune.take_failure()
  ret ptr %failure
}}"""


def _entries(why: str, texts: Texts) -> str:
    """The exported functions."""
    old = texts.name(f"a provider by Retune needs ONNX Runtime 1.{VERSION} or newer")
    return f"""
define ptr @CreateEpFactories(ptr %name, ptr %base, ptr %log, ptr %factories, i64 %room, ptr %count) {{
  %get = load ptr, ptr %base
  %api = call ptr %get(i32 {VERSION})
  %known = icmp ne ptr %api, null
  br i1 %known, label %begin, label %old
old:
  %first = call ptr %get(i32 1)
  store ptr %first, ptr @retune.api
  %too.old = call ptr @ort.CreateStatus(i32 1, ptr {old})
  ret ptr %too.old
begin:
  store ptr %api, ptr @retune.api
  %has = call i1 @retune.has_features()
  br i1 %has, label %fits, label %foreign
foreign:
  %unfit = call ptr @ort.CreateStatus(i32 1, ptr {texts.name(why)})
  ret ptr %unfit
fits:
  %ep.api = call ptr @ort.GetEpApi()
  store ptr %ep.api, ptr @retune.ep_api
  %factory = call ptr @calloc(i64 1, i64 120)
  call void @llvm.memcpy.p0.p0.i64(ptr %factory, ptr @retune.factory_table, i64 112, i1 false)
  %own = call ptr @strdup(ptr %name)
  %name.at = getelementptr i8, ptr %factory, i64 112
  store ptr %own, ptr %name.at
  store ptr %factory, ptr %factories
  store i64 1, ptr %count
  ret ptr null
}}

define ptr @ReleaseEpFactory(ptr %factory) {{
  %name = call ptr @retune.provider_name(ptr %factory)
  call void @free(ptr %name)
  call void @free(ptr %factory)
  ret ptr null
}}"""
