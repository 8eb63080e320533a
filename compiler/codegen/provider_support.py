"""LLVM text that every plug-in execution provider contains: calls of ONNX Runtime's interface, and hashes of nodes.

`retune.compiler.codegen.provider` adds the regions of one model.
"""

from retune.compiler.codegen.custom_op_support import call_through
from retune.compiler.codegen.node_hash import FIRST, INDEX_FACTOR, PRIME, SPREAD_FACTOR, WORD_FACTOR

VERSION = 23
"""Of ONNX Runtime's C interface: the first whose plug-in providers compile nodes. Newer ones contain older ones."""

_FUNCTIONS = {
    "Logger_LogMessage": (247, "ptr", "ptr, i32, ptr, ptr, i32, ptr"),
    "ReadOpAttr": (272, "ptr", "ptr, i32, ptr, i64, ptr"),
    "ReleaseValue": (96, "void", "ptr"),
    "HardwareDevice_Type": (307, "i32", "ptr"),
    "GetEpApi": (317, "ptr", ""),
}
"""More functions of `OrtApi` (onnxruntime_c_api.h, version 1.23): place in the table, result, parameters."""

_PROVIDER_FUNCTIONS = {
    "CreateEpDevice": (0, "ptr", "ptr, ptr, ptr, ptr, ptr"),
    "EpGraphSupportInfo_AddNodesToFuse": (2, "ptr", "ptr, ptr, i64, ptr"),
}
"""Functions of `OrtEpApi` (onnxruntime_ep_c_api.h, version 1.23), as above."""

_GETTERS = {
    "GetTensorSizeInBytes": (318, "i64"),
    "GetValueInfoName": (289, "ptr"),
    "ValueInfo_GetInitializerValue": (326, "ptr"),
    "ValueInfo_IsConstantInitializer": (331, "i8"),
    "Graph_GetNumNodes": (344, "i64"),
    "Graph_GetParentNode": (346, "ptr"),
    "Node_GetOperatorType": (350, "ptr"),
    "Node_GetDomain": (351, "ptr"),
    "Node_GetNumInputs": (353, "i64"),
    "Node_GetNumOutputs": (355, "i64"),
    "Node_GetNumAttributes": (359, "i64"),
    "OpAttr_GetTensorAttributeAsOrtValue": (362, "ptr"),
    "OpAttr_GetType": (363, "i32"),
    "OpAttr_GetName": (364, "ptr"),
}
"""Functions of `OrtApi` that store one property of an object: place in the table, type of the property."""

_LISTS = {"Graph_GetNodes": 345, "Node_GetInputs": 354, "Node_GetOutputs": 356, "Node_GetAttributes": 360}
"""Functions of `OrtApi` that fill an array with objects: place in the table."""

_TEXT = f"""
@retune.ep_api = internal global ptr null
@retune.fusion = internal constant {{ i32, i8 }} {{ i32 {VERSION}, i8 1 }}

declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare ptr @strdup(ptr)
declare i32 @strcmp(ptr, ptr)

define internal ptr @retune.provider_name(ptr %object) {{
  %at = getelementptr i8, ptr %object, i64 112
  %name = load ptr, ptr %at
  ret ptr %name
}}

define internal i32 @retune.vendor_id(ptr %factory) {{
  ret i32 0
}}

define internal ptr @retune.no_allocator(ptr %factory, ptr %info, ptr %options, ptr %allocator) {{
  store ptr null, ptr %allocator
  ret ptr null
}}

define internal ptr @retune.no_transfer(ptr %factory, ptr %transfer) {{
  store ptr null, ptr %transfer
  ret ptr null
}}

define internal ptr @retune.no_stream(ptr %factory, ptr %device, ptr %options, ptr %stream) {{
  store ptr null, ptr %stream
  ret ptr null
}}

define internal i1 @retune.is_stream_aware(ptr %factory) {{
  ret i1 false
}}

define internal void @retune.release(ptr %factory, ptr %object) {{
  call void @free(ptr %object)
  ret void
}}

define internal ptr @retune.take_failure() {{
  %failure = load ptr, ptr @retune.failure
  store ptr null, ptr @retune.failure
  ret ptr %failure
}}

; One device: the first CPU.
define internal ptr @retune.devices(ptr %factory, ptr %devices, i64 %count, ptr %found, i64 %room, ptr %found.count) {{
  store i64 0, ptr %found.count
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %other ]
  %left = icmp ult i64 %n, %count
  br i1 %left, label %ask, label %none
ask:
  %at = getelementptr ptr, ptr %devices, i64 %n
  %device = load ptr, ptr %at
  %type = call i32 @ort.HardwareDevice_Type(ptr %device)
  %is.cpu = icmp eq i32 %type, 0
  %n.next = add i64 %n, 1
  br i1 %is.cpu, label %make, label %other
other:
  br label %next
make:
  %status = call ptr @ort.CreateEpDevice(ptr %factory, ptr %device, ptr null, ptr null, ptr %found)
  %made = icmp eq ptr %status, null
  %made.count = zext i1 %made to i64
  store i64 %made.count, ptr %found.count
  ret ptr %status
none:
  ret ptr null
}}

define internal ptr @retune.create_provider(ptr %factory, ptr %d, ptr %m, i64 %n, ptr %options, ptr %log, ptr %to) {{
  %provider = call ptr @calloc(i64 1, i64 128)
  call void @llvm.memcpy.p0.p0.i64(ptr %provider, ptr @retune.provider_table, i64 104, i1 false)
  %name = call ptr @retune.provider_name(ptr %factory)
  %name.at = getelementptr i8, ptr %provider, i64 112
  store ptr %name, ptr %name.at
  %log.at = getelementptr i8, ptr %provider, i64 120
  store ptr %log, ptr %log.at
  store ptr %provider, ptr %to
  ret ptr null
}}

define internal i64 @retune.mix(i64 %hash, i64 %value) {{
  %changed = xor i64 %hash, %value
  %spread = mul i64 %changed, {PRIME}
  ret i64 %spread
}}

define internal i64 @retune.hash_text(i64 %before, ptr %text) {{
  %missing = icmp eq ptr %text, null
  br i1 %missing, label %empty, label %next
empty:
  %of.empty = call i64 @retune.mix(i64 %before, i64 0)
  ret i64 %of.empty
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %next ]
  %hash = phi i64 [ %before, %0 ], [ %hash.next, %next ]
  %at = getelementptr i8, ptr %text, i64 %n
  %byte = load i8, ptr %at
  %value = zext i8 %byte to i64
  %hash.next = call i64 @retune.mix(i64 %hash, i64 %value)
  %n.next = add i64 %n, 1
  %last = icmp eq i8 %byte, 0
  br i1 %last, label %done, label %next
done:
  ret i64 %hash.next
}}

define internal i64 @retune.hash_word(i64 %word, i64 %n) {{
  %place = mul i64 %n, {INDEX_FACTOR}
  %changed = xor i64 %word, %place
  %spread = mul i64 %changed, {WORD_FACTOR}
  %high = lshr i64 %spread, 32
  %folded = xor i64 %spread, %high
  %value = mul i64 %folded, {SPREAD_FACTOR}
  ret i64 %value
}}

define internal i64 @retune.hash_data(i64 %before, ptr %data, i64 %bytes) {{
  %rest.at = alloca i64, align 8
  store i64 0, ptr %rest.at
  %words = lshr i64 %bytes, 3
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %add ]
  %sum = phi i64 [ %bytes, %0 ], [ %sum.next, %add ]
  %left = icmp ult i64 %n, %words
  br i1 %left, label %add, label %tail
add:
  %at = getelementptr i64, ptr %data, i64 %n
  %word = load i64, ptr %at, align 1
  %value = call i64 @retune.hash_word(i64 %word, i64 %n)
  %sum.next = add i64 %sum, %value
  %n.next = add i64 %n, 1
  br label %next
tail:
  %rest.bytes = and i64 %bytes, 7
  %some = icmp ne i64 %rest.bytes, 0
  br i1 %some, label %rest, label %done
rest:
  %rest.begin = getelementptr i64, ptr %data, i64 %words
  call void @llvm.memcpy.p0.p0.i64(ptr %rest.at, ptr %rest.begin, i64 %rest.bytes, i1 false)
  %rest.word = load i64, ptr %rest.at
  %rest.value = call i64 @retune.hash_word(i64 %rest.word, i64 %words)
  %sum.rest = add i64 %sum, %rest.value
  br label %done
done:
  %total = phi i64 [ %sum, %tail ], [ %sum.rest, %rest ]
  %hash = call i64 @retune.mix(i64 %before, i64 %total)
  ret i64 %hash
}}

define internal i64 @retune.hash_tensor(i64 %before, ptr %tensor) {{
  %data.at = alloca ptr, align 8
  store ptr null, ptr %data.at
  %bytes = call i64 @get.GetTensorSizeInBytes(ptr %tensor)
  %status = call ptr @ort.GetTensorMutableData(ptr %tensor, ptr %data.at)
  call void @retune.fail(ptr %status)
  %data = load ptr, ptr %data.at
  %missing = icmp eq ptr %data, null
  br i1 %missing, label %none, label %some
none:
  ret i64 %before
some:
  %hash = call i64 @retune.hash_data(i64 %before, ptr %data, i64 %bytes)
  ret i64 %hash
}}

; A value that a node reads or writes; one that is left out is null.
define internal i64 @retune.hash_value(i64 %before, ptr %value) {{
  %missing = icmp eq ptr %value, null
  br i1 %missing, label %none, label %some
none:
  %of.none = call i64 @retune.mix(i64 %before, i64 0)
  ret i64 %of.none
some:
  %name = call ptr @get.GetValueInfoName(ptr %value)
  %named = call i64 @retune.hash_text(i64 %before, ptr %name)
  %constant = call i8 @get.ValueInfo_IsConstantInitializer(ptr %value)
  %is.constant = icmp ne i8 %constant, 0
  br i1 %is.constant, label %content, label %done
content:
  %tensor = call ptr @get.ValueInfo_GetInitializerValue(ptr %value)
  %absent = icmp eq ptr %tensor, null
  br i1 %absent, label %done, label %read
read:
  %filled = call i64 @retune.hash_tensor(i64 %named, ptr %tensor)
  ret i64 %filled
done:
  ret i64 %named
}}

; An attribute: numbers 1 to 5 of types are numbers, lists of them and strings, number 8 is a tensor.
define internal i64 @retune.hash_attribute(ptr %attribute) {{
  %size.at = alloca i64, align 8
  store i64 0, ptr %size.at
  %name = call ptr @get.OpAttr_GetName(ptr %attribute)
  %named = call i64 @retune.hash_text(i64 {FIRST}, ptr %name)
  %type = call i32 @get.OpAttr_GetType(ptr %attribute)
  switch i32 %type, label %other [ i32 1, label %plain i32 2, label %plain i32 3, label %plain i32 4, label %plain
                                   i32 5, label %plain i32 8, label %tensor ]
other:
  ret i64 %named
tensor:
  %value = call ptr @get.OpAttr_GetTensorAttributeAsOrtValue(ptr %attribute)
  %absent = icmp eq ptr %value, null
  br i1 %absent, label %other, label %content
content:
  %of.tensor = call i64 @retune.hash_tensor(i64 %named, ptr %value)
  call void @ort.ReleaseValue(ptr %value)
  ret i64 %of.tensor
plain:
  %buffer = call ptr @calloc(i64 1, i64 65536)
  %status = call ptr @ort.ReadOpAttr(ptr %attribute, i32 %type, ptr %buffer, i64 65535, ptr %size.at)
  %long = icmp ne ptr %status, null
  call void @ort.ReleaseStatus(ptr %status)
  %size = load i64, ptr %size.at
  %used = select i1 %long, i64 0, i64 %size
  %is.text = icmp eq i32 %type, 5
  br i1 %is.text, label %text, label %numbers
text:
  %of.text = call i64 @retune.hash_text(i64 %named, ptr %buffer)
  call void @free(ptr %buffer)
  ret i64 %of.text
numbers:
  %of.numbers = call i64 @retune.hash_data(i64 %named, ptr %buffer, i64 %used)
  call void @free(ptr %buffer)
  ret i64 %of.numbers
}}

define internal i64 @retune.hash_values(i64 %before, ptr %values, i64 %count) {{
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %add ]
  %hash = phi i64 [ %before, %0 ], [ %hash.next, %add ]
  %left = icmp ult i64 %n, %count
  br i1 %left, label %add, label %done
add:
  %at = getelementptr ptr, ptr %values, i64 %n
  %value = load ptr, ptr %at
  %hash.next = call i64 @retune.hash_value(i64 %hash, ptr %value)
  %n.next = add i64 %n, 1
  br label %next
done:
  call void @free(ptr %values)
  %ended = call i64 @retune.mix(i64 %hash, i64 1)
  ret i64 %ended
}}

define internal i64 @retune.hash_node(ptr %node) {{
  %domain = call ptr @get.Node_GetDomain(ptr %node)
  %hash.0 = call i64 @retune.hash_text(i64 {FIRST}, ptr %domain)
  %type = call ptr @get.Node_GetOperatorType(ptr %node)
  %hash.1 = call i64 @retune.hash_text(i64 %hash.0, ptr %type)
  %inputs.count = call i64 @get.Node_GetNumInputs(ptr %node)
  %inputs = call ptr @list.Node_GetInputs(ptr %node, i64 %inputs.count)
  %hash.2 = call i64 @retune.hash_values(i64 %hash.1, ptr %inputs, i64 %inputs.count)
  %outputs.count = call i64 @get.Node_GetNumOutputs(ptr %node)
  %outputs = call ptr @list.Node_GetOutputs(ptr %node, i64 %outputs.count)
  %hash.3 = call i64 @retune.hash_values(i64 %hash.2, ptr %outputs, i64 %outputs.count)
  %count = call i64 @get.Node_GetNumAttributes(ptr %node)
  %attributes = call ptr @list.Node_GetAttributes(ptr %node, i64 %count)
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %add ]
  %sum = phi i64 [ 0, %0 ], [ %sum.next, %add ]
  %left = icmp ult i64 %n, %count
  br i1 %left, label %add, label %done
add:
  %at = getelementptr ptr, ptr %attributes, i64 %n
  %attribute = load ptr, ptr %at
  %value = call i64 @retune.hash_attribute(ptr %attribute)
  %sum.next = add i64 %sum, %value
  %n.next = add i64 %n, 1
  br label %next
done:
  call void @free(ptr %attributes)
  %hash = call i64 @retune.mix(i64 %hash.3, i64 %sum)
  ret i64 %hash
}}

define internal ptr @retune.create_state(ptr %computation, ptr %context, ptr %state) {{
  store ptr null, ptr %state
  ret ptr null
}}

define internal void @retune.release_state(ptr %computation, ptr %state) {{
  ret void
}}

; A computation is an `OrtNodeComputeInfo`, then the function at byte 32 and the places of the tensors from byte 40 on.
define internal ptr @retune.run(ptr %computation, ptr %state, ptr %context) {{
  %function.at = getelementptr i8, ptr %computation, i64 32
  %function = load ptr, ptr %function.at
  %order = getelementptr i8, ptr %computation, i64 40
  %status = call ptr %function(ptr %order, ptr %context)
  ret ptr %status
}}

define internal void @retune.release_computations(ptr %provider, ptr %computations, i64 %count) {{
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %release ]
  %left = icmp ult i64 %n, %count
  br i1 %left, label %release, label %done
release:
  %at = getelementptr ptr, ptr %computations, i64 %n
  %computation = load ptr, ptr %at
  call void @free(ptr %computation)
  %n.next = add i64 %n, 1
  br label %next
done:
  ret void
}}

; Where each of some names is among values; whether all of them are.
define internal i1 @retune.find_places(ptr %names, i64 %wanted, ptr %values, i64 %count, ptr %places) {{
  br label %next
next:
  %n = phi i64 [ 0, %0 ], [ %n.next, %found ]
  %left = icmp ult i64 %n, %wanted
  br i1 %left, label %search, label %all
search:
  %name.at = getelementptr ptr, ptr %names, i64 %n
  %name = load ptr, ptr %name.at
  br label %compare
compare:
  %v = phi i64 [ 0, %search ], [ %v.next, %another ]
  %more = icmp ult i64 %v, %count
  br i1 %more, label %read, label %absent
read:
  %value.at = getelementptr ptr, ptr %values, i64 %v
  %value = load ptr, ptr %value.at
  %v.next = add i64 %v, 1
  %missing = icmp eq ptr %value, null
  br i1 %missing, label %another, label %match
match:
  %own = call ptr @get.GetValueInfoName(ptr %value)
  %difference = call i32 @strcmp(ptr %own, ptr %name)
  %same = icmp eq i32 %difference, 0
  br i1 %same, label %found, label %another
another:
  br label %compare
found:
  %place.at = getelementptr i64, ptr %places, i64 %n
  store i64 %v, ptr %place.at
  %n.next = add i64 %n, 1
  br label %next
absent:
  ret i1 false
all:
  ret i1 true
}}
"""


def provider_support_text() -> str:
    """The functions that all providers share."""
    return "\n".join(
        [
            *(call_through(name, *each) for name, each in _FUNCTIONS.items()),
            *(call_through(name, *each, table="ep_api") for name, each in _PROVIDER_FUNCTIONS.items()),
            *(_getter(name, *each) for name, each in _GETTERS.items()),
            *(_lister(name, place) for name, place in _LISTS.items()),
            _TEXT,
        ]
    )


def _getter(name: str, place: int, kind: str) -> str:
    """The function `get.NAME`, which returns a property of an object; zero when that failed."""
    return "\n".join(
        [
            call_through(name, place, "ptr", "ptr, ptr"),
            f"define internal {kind} @get.{name}(ptr %of) {{",
            f"  %at = alloca {kind}, align 8",
            f"  store {kind} {'null' if kind == 'ptr' else 0}, ptr %at",
            f"  %status = call ptr @ort.{name}(ptr %of, ptr %at)",
            "  call void @retune.fail(ptr %status)",
            f"  %value = load {kind}, ptr %at",
            f"  ret {kind} %value",
            "}",
        ]
    )


def _lister(name: str, place: int) -> str:
    """The function `list.NAME`, which returns objects in memory that the caller frees."""
    return "\n".join(
        [
            call_through(name, place, "ptr", "ptr, ptr, i64"),
            f"define internal ptr @list.{name}(ptr %of, i64 %count) {{",
            "  %room = add i64 %count, 1",
            "  %list = call ptr @calloc(i64 %room, i64 8)",
            "  %none = icmp eq i64 %count, 0",
            "  br i1 %none, label %done, label %fill",
            "fill:",
            f"  %status = call ptr @ort.{name}(ptr %of, ptr %list, i64 %count)",
            "  call void @retune.fail(ptr %status)",
            "  br label %done",
            "done:",
            "  ret ptr %list",
            "}",
        ]
    )
