"""What the operators of every library for ONNX Runtime share: facts of its C interface, and LLVM text.

`OrtApi` is a table of functions that later versions append to; `OrtCustomOp` describes an operator. Numbers and order
are those of `onnxruntime_c_api.h`.
"""

VERSION = 17
"""Of ONNX Runtime's C interface: the first with `KernelContext_ParallelFor`. Newer ones contain older ones."""

FUNCTIONS = {
    "CreateStatus": (0, "ptr", "i32, ptr"),
    "CreateCustomOpDomain": (26, "ptr", "ptr, ptr"),
    "CustomOpDomain_Add": (27, "ptr", "ptr, ptr"),
    "AddCustomOpDomain": (28, "ptr", "ptr, ptr"),
    "GetTensorMutableData": (51, "ptr", "ptr, ptr"),
    "GetTensorElementType": (60, "ptr", "ptr, ptr"),
    "GetDimensionsCount": (61, "ptr", "ptr, ptr"),
    "GetDimensions": (62, "ptr", "ptr, ptr, i64"),
    "GetTensorTypeAndShape": (65, "ptr", "ptr, ptr"),
    "CreateCpuMemoryInfo": (69, "ptr", "i32, i32, ptr"),
    "AllocatorAlloc": (75, "ptr", "ptr, i64, ptr"),
    "AllocatorFree": (76, "ptr", "ptr, ptr"),
    "KernelContext_GetInput": (90, "ptr", "ptr, i64, ptr"),
    "KernelContext_GetOutput": (91, "ptr", "ptr, i64, ptr, i64, ptr"),
    "ReleaseStatus": (93, "void", "ptr"),
    "ReleaseMemoryInfo": (94, "void", "ptr"),
    "ReleaseTensorTypeAndShapeInfo": (99, "void", "ptr"),
    "ReleaseCustomOpDomain": (101, "void", "ptr"),
    "ReleaseAllocator": (132, "void", "ptr"),
    "KernelContext_GetAllocator": (253, "ptr", "ptr, ptr, ptr"),
    "KernelContext_ParallelFor": (274, "ptr", "ptr, ptr, i64, i64, ptr"),
}
"""The functions of `OrtApi` that the library calls: place in the table, result, parameters."""

FIELDS = (
    "CreateKernel", "GetName", "GetExecutionProviderType", "GetInputType", "GetInputTypeCount", "GetOutputType",
    "GetOutputTypeCount", "KernelCompute", "KernelDestroy", "GetInputCharacteristic", "GetOutputCharacteristic",
    "GetInputMemoryType", "GetVariadicInputMinArity", "GetVariadicInputHomogeneity", "GetVariadicOutputMinArity",
    "GetVariadicOutputHomogeneity", "CreateKernelV2", "KernelComputeV2", "InferOutputShapeFn", "GetStartVersion",
    "GetEndVersion", "GetMayInplace", "ReleaseMayInplace", "GetAliasMap", "ReleaseAliasMap",
)  # fmt: skip
"""The functions in `OrtCustomOp`, after its version."""

SHARED = {
    "GetName": "@retune.name",
    "GetExecutionProviderType": "@retune.provider",
    "GetInputType": "@retune.input_type",
    "GetInputTypeCount": "@retune.input_count",
    "GetOutputType": "@retune.output_type",
    "GetOutputTypeCount": "@retune.output_count",
    "KernelDestroy": "@retune.destroy",
    "GetInputCharacteristic": "@retune.zero",
    "GetOutputCharacteristic": "@retune.zero",
    "GetInputMemoryType": "@retune.zero",
    "CreateKernelV2": "@retune.create",
    "GetStartVersion": "@retune.first_version",
    "GetEndVersion": "@retune.last_version",
}
"""Those that are the same for all operators; what differs is kept behind the functions, from byte 208 on."""

_TEXT = """
@retune.api = internal global ptr null
@retune.domain = internal global ptr null
@retune.context = internal thread_local global ptr null
@retune.failure = internal thread_local global ptr null
@retune.share = internal thread_local global i32 0
@retune.shares = internal thread_local global i32 1
@retune.constants = external hidden constant [0 x i8], align 64

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i32 @memcmp(ptr, ptr, i64)

define internal ptr @retune.provider(ptr %op) {
  ret ptr null
}

define internal i32 @retune.zero(ptr %op, i64 %place) {
  ret i32 0
}

define internal i32 @retune.first_version(ptr %op) {
  ret i32 1
}

define internal i32 @retune.last_version(ptr %op) {
  ret i32 2147483647
}

define internal ptr @retune.create(ptr %op, ptr %api, ptr %info, ptr %kernel) {
  store ptr %op, ptr %kernel
  ret ptr null
}

define internal void @retune.destroy(ptr %kernel) {
  ret void
}

; One share of a parallel loop, on a thread of the session: %work is the function, its data and the number of shares.
define internal void @retune.work(ptr %work, i64 %place) {
  %function = load ptr, ptr %work
  %data.at = getelementptr i8, ptr %work, i64 8
  %data = load ptr, ptr %data.at
  %count.at = getelementptr i8, ptr %work, i64 16
  %count = load i32, ptr %count.at
  %share = trunc i64 %place to i32
  store i32 %share, ptr @retune.share
  store i32 %count, ptr @retune.shares
  call void %function(ptr %data)
  store i32 0, ptr @retune.share
  store i32 1, ptr @retune.shares
  ret void
}

define hidden void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) {
  %work = alloca { ptr, ptr, i32 }, align 8
  store ptr %function, ptr %work
  %data.at = getelementptr i8, ptr %work, i64 8
  store ptr %data, ptr %data.at
  %count.at = getelementptr i8, ptr %work, i64 16
  store i32 %threads, ptr %count.at
  %count = zext i32 %threads to i64
  %context = load ptr, ptr @retune.context
  %status = call ptr @ort.KernelContext_ParallelFor(ptr %context, ptr @retune.work, i64 %count, i64 %count, ptr %work)
  call void @retune.fail(ptr %status)
  ret void
}

define hidden i32 @omp_get_thread_num() {
  %share = load i32, ptr @retune.share
  ret i32 %share
}

define hidden i32 @omp_get_num_threads() {
  %shares = load i32, ptr @retune.shares
  ret i32 %shares
}

; Keep the status of a loop that failed for the end of the run; of several, the last.
define internal void @retune.fail(ptr %status) {
  %failed = icmp ne ptr %status, null
  br i1 %failed, label %keep, label %done
keep:
  %before = load ptr, ptr @retune.failure
  call void @ort.ReleaseStatus(ptr %before)
  store ptr %status, ptr @retune.failure
  br label %done
done:
  ret void
}

; Where an input lies, which must have this type and shape.
define internal ptr @retune.input(ptr %context, i64 %place, i32 %type, ptr %dims, i64 %rank, ptr %message, ptr %data) {
  %value.at = alloca ptr, align 8
  %info.at = alloca ptr, align 8
  %type.at = alloca i32, align 8
  %rank.at = alloca i64, align 8
  %dims.at = alloca i64, i64 %rank, align 8
  %got = call ptr @ort.KernelContext_GetInput(ptr %context, i64 %place, ptr %value.at)
  %got.bad = icmp ne ptr %got, null
  br i1 %got.bad, label %failed, label %describe
describe:
  %value = load ptr, ptr %value.at
  %described = call ptr @ort.GetTensorTypeAndShape(ptr %value, ptr %info.at)
  %described.bad = icmp ne ptr %described, null
  br i1 %described.bad, label %failed, label %ask_type
ask_type:
  %info = load ptr, ptr %info.at
  %typed = call ptr @ort.GetTensorElementType(ptr %info, ptr %type.at)
  %typed.bad = icmp ne ptr %typed, null
  br i1 %typed.bad, label %release, label %ask_rank
ask_rank:
  %ranked = call ptr @ort.GetDimensionsCount(ptr %info, ptr %rank.at)
  %ranked.bad = icmp ne ptr %ranked, null
  br i1 %ranked.bad, label %release, label %compare
compare:
  %found.type = load i32, ptr %type.at
  %same.type = icmp eq i32 %found.type, %type
  %found.rank = load i64, ptr %rank.at
  %same.rank = icmp eq i64 %found.rank, %rank
  %same = and i1 %same.type, %same.rank
  br i1 %same, label %ask_dims, label %refuse
ask_dims:
  %sized = call ptr @ort.GetDimensions(ptr %info, ptr %dims.at, i64 %rank)
  %sized.bad = icmp ne ptr %sized, null
  br i1 %sized.bad, label %release, label %compare_dims
compare_dims:
  %bytes = mul i64 %rank, 8
  %order = call i32 @memcmp(ptr %dims.at, ptr %dims, i64 %bytes)
  %fits = icmp eq i32 %order, 0
  br i1 %fits, label %take, label %refuse
refuse:
  %refused = call ptr @ort.CreateStatus(i32 2, ptr %message)
  br label %release
take:
  call void @ort.ReleaseTensorTypeAndShapeInfo(ptr %info)
  %taken = call ptr @ort.GetTensorMutableData(ptr %value, ptr %data)
  ret ptr %taken
release:
  %why = phi ptr [ %typed, %ask_type ], [ %ranked, %ask_rank ], [ %sized, %ask_dims ], [ %refused, %refuse ]
  call void @ort.ReleaseTensorTypeAndShapeInfo(ptr %info)
  br label %failed
failed:
  %status = phi ptr [ %got, %0 ], [ %described, %describe ], [ %why, %release ]
  ret ptr %status
}

define internal ptr @retune.output(ptr %context, i64 %place, ptr %dims, i64 %rank, ptr %data) {
  %value.at = alloca ptr, align 8
  %got = call ptr @ort.KernelContext_GetOutput(ptr %context, i64 %place, ptr %dims, i64 %rank, ptr %value.at)
  %bad = icmp ne ptr %got, null
  br i1 %bad, label %failed, label %take
failed:
  ret ptr %got
take:
  %value = load ptr, ptr %value.at
  %taken = call ptr @ort.GetTensorMutableData(ptr %value, ptr %data)
  ret ptr %taken
}

; Memory of the session's own allocator for one run.
define internal ptr @retune.allocate(ptr %context, i64 %bytes, ptr %allocator.at, ptr %memory.at) {
  %info.at = alloca ptr, align 8
  %made = call ptr @ort.CreateCpuMemoryInfo(i32 1, i32 0, ptr %info.at)
  %made.bad = icmp ne ptr %made, null
  br i1 %made.bad, label %failed, label %find
find:
  %info = load ptr, ptr %info.at
  %found = call ptr @ort.KernelContext_GetAllocator(ptr %context, ptr %info, ptr %allocator.at)
  call void @ort.ReleaseMemoryInfo(ptr %info)
  %found.bad = icmp ne ptr %found, null
  br i1 %found.bad, label %failed, label %take
take:
  %allocator = load ptr, ptr %allocator.at
  %taken = call ptr @ort.AllocatorAlloc(ptr %allocator, i64 %bytes, ptr %memory.at)
  %taken.bad = icmp ne ptr %taken, null
  br i1 %taken.bad, label %release, label %failed
release:
  call void @ort.ReleaseAllocator(ptr %allocator)
  br label %failed
failed:
  %status = phi ptr [ %made, %0 ], [ %found, %find ], [ %taken, %take ], [ %taken, %release ]
  ret ptr %status
}
"""


def _field_reader(name: str, kind: str, offset: int) -> str:
    """A function that returns a field of an operator's description."""
    return f"""
define internal {kind} @retune.{name}(ptr %op) {{
  %at = getelementptr i8, ptr %op, i64 {offset}
  %field = load {kind}, ptr %at
  ret {kind} %field
}}"""


def _type_reader(name: str, offset: int) -> str:
    """A function that returns one of the types that a field of the description points to."""
    return f"""
define internal i32 @retune.{name}(ptr %op, i64 %place) {{
  %at = getelementptr i8, ptr %op, i64 {offset}
  %types = load ptr, ptr %at
  %of = getelementptr i32, ptr %types, i64 %place
  %type = load i32, ptr %of
  ret i32 %type
}}"""


def call_through(name: str, place: int, result: str, kinds: str) -> str:
    """The function `ort.NAME`, which calls the one that `OrtApi` has at a known place."""
    given = ", ".join(f"{kind} %a{number}" for number, kind in enumerate(kinds.split(", ")) if kind)
    call = f"call {result} %function({given})"
    ending = ["  ret void"] if result == "void" else [f"  ret {result} %result"]
    return "\n".join(
        [
            f"define internal {result} @ort.{name}({given}) {{",
            "  %api = load ptr, ptr @retune.api",
            f"  %at = getelementptr ptr, ptr %api, i64 {place}",
            "  %function = load ptr, ptr %at",
            f"  {call}" if result == "void" else f"  %result = {call}",
            *ending,
            "}",
        ]
    )


def support_text() -> str:
    """The functions that all operators share."""
    fields = (
        # 208 = 8 bytes of version and padding, then the 25 pointers of `FIELDS`.
        _field_reader("name", "ptr", 208),
        _field_reader("input_count", "i64", 216),
        _type_reader("input_type", 224),
        _field_reader("output_count", "i64", 232),
        _type_reader("output_type", 240),
    )
    return "\n".join([_TEXT, *fields, *(call_through(name, *each) for name, each in FUNCTIONS.items())])
