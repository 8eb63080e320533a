"""What the FFI entries of all kernels share: constants of the C interface, and LLVM text of the checks.

The layouts of `TVMFFIAny` (16 bytes: type at 0, value at 8), of objects (a header of 24 bytes) and of DLPack's
`DLTensor` are those of a 64-bit little-endian machine.
"""

from dataclasses import dataclass
from enum import IntEnum

from retune.compiler.errors import LoweringError


class FfiType(IntEnum):
    """Kinds of values as the FFI numbers them."""

    INT = 1
    BOOL = 2
    FLOAT = 3
    RAW_TEXT = 8

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class DLPackType:
    """An element type of DLPack."""

    code: int
    bits: int

    @property
    def word(self) -> int:
        """Code, bits and one lane in the four bytes of a `DLDataType`."""
        return self.code | self.bits << 8 | 1 << 16


_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_BOOL = DLPackType(6, 8)


def dlpack_type(dtype: str) -> DLPackType:
    """DLPack's numbers of an element type. Raises: LoweringError for one that it does not have."""
    if dtype == "bool":
        return _BOOL
    name = dtype.rstrip("0123456789")
    if name not in _CODES:
        raise LoweringError(f"DLPack has no element type {dtype}")
    return DLPackType(_CODES[name], int(dtype[len(name) :]))


def constant_name(number: int) -> str:
    """The name of constant number `number` of a module."""
    return f"@retune.constant{number}"


def _text(name: str, text: str) -> str:
    data = text.encode()
    body = "".join(f"\\{byte:02X}" for byte in (*data, 0))
    return f'@retune.{name} = private unnamed_addr constant [{len(data) + 1} x i8] c"{body}"'


_KINDS = (
    "None",
    "an int",
    "a bool",
    "a float",
    "a pointer",
    "a type",
    "a device",
    "",
    "a string",
    "bytes",
    "an object",
)
_CODE_NAMES = ("int", "uint", "float", "handle", "bfloat", "complex", "bool")


def _names(name: str, texts: tuple[str, ...]) -> str:
    lines = [_text(f"{name}{number}", text) for number, text in enumerate(texts)]
    rows = ", ".join(f"ptr @retune.{name}{number}" for number in range(len(texts)))
    return "\n".join((*lines, f"@retune.{name} = private unnamed_addr constant [{len(texts)} x ptr] [{rows}]"))


_TEXTS = "\n".join(
    (
        _text("type_error", "TypeError"),
        _text("value_error", "ValueError"),
        _text("memory_error", "MemoryError"),
        _names("kinds", _KINDS),
        _names("codes", _CODE_NAMES),
        _text("no_tensor", "%s: expected a tensor %s, got %s"),
        _text("no_threads", "%s: the number of threads must be an integer from 1 to %d"),
        _text("other_device", "%s: expected memory of the CPU, got a tensor on device type %d"),
        _text("other_type", "%s: expected %s, got elements of type %s%d"),
        _text("other_lanes", "%s: expected %s, got elements of %d lanes"),
        _text("other_rank", "%s: expected %s, got %d dimensions"),
        _text("other_shape", "%s: expected %s, got %lld elements in dimension %d"),
        _text("other_strides", "%s: expected %s without gaps, got a stride of %lld elements in dimension %d; copy it"),
        _text("other_address", "%s: the tensor %s has no memory"),
    )
)

SUPPORT = (
    f"""
%retune.spec = type {{ ptr, ptr, ptr, i32, i32 }}
%retune.form = type {{ ptr, i64, i32, i32, ptr, ptr, i64, ptr, ptr }}

{_TEXTS}

declare extern_weak void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare extern_weak i32 @TVMFFIFunctionGetGlobal(ptr, ptr)
declare extern_weak i32 @TVMFFIFunctionCall(ptr, ptr, i32, ptr)
declare extern_weak i32 @TVMFFIObjectDecRef(ptr)
declare extern_weak i32 @TVMFFITensorFromDLPack(ptr, i32, i32, ptr)
declare i32 @snprintf(ptr, i64, ptr, ...)
declare ptr @aligned_alloc(i64, i64)
declare ptr @malloc(i64)
declare ptr @memcpy(ptr, ptr, i64)
declare void @free(ptr)
declare i32 @omp_get_max_threads()
"""
    + r"""
define internal void @retune.raise(ptr %kind, ptr %message) cold noinline {
entry:
  %there = icmp ne ptr @TVMFFIErrorSetRaisedFromCStr, null
  br i1 %there, label %set, label %done
set:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr %kind, ptr %message)
  br label %done
done:
  ret void
}

; The number of threads of a call, or 0 after an error: given behind the tensors, or what OpenMP would take.
define internal i32 @retune.threads(ptr %where, ptr %takes, ptr %args, i32 %count, i32 %tensors, i32 %most) {
entry:
  %text = alloca [1024 x i8], align 1
  %plain = icmp eq i32 %count, %tensors
  br i1 %plain, label %usual, label %more
usual:
  %omp = call i32 @omp_get_max_threads()
  %low = icmp slt i32 %omp, 1
  %least = select i1 %low, i32 1, i32 %omp
  %high = icmp sgt i32 %least, %most
  %clipped = select i1 %high, i32 %most, i32 %least
  ret i32 %clipped
more:
  %one = add i32 %tensors, 1
  %given = icmp eq i32 %count, %one
  br i1 %given, label %read, label %wrong
read:
  %wide = sext i32 %tensors to i64
  %offset = mul i64 %wide, 16
  %any = getelementptr i8, ptr %args, i64 %offset
  %type = load i32, ptr %any, align 4
  %slot = getelementptr i8, ptr %any, i64 8
  %number = load i64, ptr %slot, align 8
  %whole = icmp eq i32 %type, 1
  %some = icmp sgt i64 %number, 0
  %limit = zext i32 %most to i64
  %few = icmp sle i64 %number, %limit
  %a = and i1 %whole, %some
  %fits = and i1 %a, %few
  br i1 %fits, label %taken, label %refused
taken:
  %narrow = trunc i64 %number to i32
  ret i32 %narrow
wrong:
  %n1 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 1024, ptr %takes, i32 %count)
  call void @retune.raise(ptr @retune.type_error, ptr %text)
  ret i32 0
refused:
  %n2 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 1024, ptr @retune.no_threads, ptr %where, i32 %most)
  call void @retune.raise(ptr @retune.value_error, ptr %text)
  ret i32 0
}

; The address of a tensor's first element, or null after an error.
define internal ptr @retune.data(ptr %any, ptr %spec) {
entry:
  %text = alloca [1024 x i8], align 1
  %where = load ptr, ptr %spec, align 8
  %what.slot = getelementptr %retune.spec, ptr %spec, i64 0, i32 1
  %what = load ptr, ptr %what.slot, align 8
  %type = load i32, ptr %any, align 4
  %value.slot = getelementptr i8, ptr %any, i64 8
  %value = load ptr, ptr %value.slot, align 8
  %object = icmp eq i32 %type, 70
  %pointer = icmp eq i32 %type, 7
  %tensor = or i1 %object, %pointer
  br i1 %tensor, label %found, label %no.tensor
found:
  %head = select i1 %object, i64 24, i64 0
  %dl = getelementptr i8, ptr %value, i64 %head
  %device.slot = getelementptr i8, ptr %dl, i64 8
  %device = load i32, ptr %device.slot, align 8
  %cpu = icmp eq i32 %device, 1
  br i1 %cpu, label %typed, label %other.device
typed:
  %dtype.slot = getelementptr i8, ptr %dl, i64 20
  %dtype = load i32, ptr %dtype.slot, align 4
  %dtype.spec = getelementptr %retune.spec, ptr %spec, i64 0, i32 4
  %dtype.wanted = load i32, ptr %dtype.spec, align 4
  %same.type = icmp eq i32 %dtype, %dtype.wanted
  br i1 %same.type, label %ranked, label %other.type
ranked:
  %rank.slot = getelementptr i8, ptr %dl, i64 16
  %rank = load i32, ptr %rank.slot, align 4
  %rank.spec = getelementptr %retune.spec, ptr %spec, i64 0, i32 3
  %rank.wanted = load i32, ptr %rank.spec, align 8
  %same.rank = icmp eq i32 %rank, %rank.wanted
  br i1 %same.rank, label %shaped, label %other.rank
shaped:
  %shape.slot = getelementptr i8, ptr %dl, i64 24
  %shape = load ptr, ptr %shape.slot, align 8
  %shape.spec = getelementptr %retune.spec, ptr %spec, i64 0, i32 2
  %shape.wanted = load ptr, ptr %shape.spec, align 8
  %strides.slot = getelementptr i8, ptr %dl, i64 32
  %strides = load ptr, ptr %strides.slot, align 8
  %dense = icmp eq ptr %strides, null
  %start = zext i32 %rank to i64
  br label %test
test:
  %i = phi i64 [ %start, %shaped ], [ %d, %next ]
  %step = phi i64 [ 1, %shaped ], [ %step.next, %next ]
  %end = icmp eq i64 %i, 0
  br i1 %end, label %placed, label %dimension
dimension:
  %d = sub i64 %i, 1
  %extent.slot = getelementptr i64, ptr %shape, i64 %d
  %extent = load i64, ptr %extent.slot, align 8
  %wanted.slot = getelementptr i64, ptr %shape.wanted, i64 %d
  %wanted = load i64, ptr %wanted.slot, align 8
  %same = icmp eq i64 %extent, %wanted
  br i1 %same, label %stepped, label %other.shape
stepped:
  %single = icmp eq i64 %extent, 1
  %free = or i1 %dense, %single
  br i1 %free, label %next, label %stride
stride:
  %stride.slot = getelementptr i64, ptr %strides, i64 %d
  %distance = load i64, ptr %stride.slot, align 8
  %close = icmp eq i64 %distance, %step
  br i1 %close, label %next, label %other.strides
next:
  %step.next = mul i64 %step, %extent
  br label %test
placed:
  %data = load ptr, ptr %dl, align 8
  %offset.slot = getelementptr i8, ptr %dl, i64 40
  %offset = load i64, ptr %offset.slot, align 8
  %first = getelementptr i8, ptr %data, i64 %offset
  %nowhere = icmp eq ptr %data, null
  br i1 %nowhere, label %other.address, label %good
good:
  ret ptr %first
no.tensor:
  %known = icmp ult i32 %type, 11
  %kind.index = select i1 %known, i32 %type, i32 10
  %texts = icmp eq i32 %type, 11
  %text.object = icmp eq i32 %type, 65
  %is.text = or i1 %texts, %text.object
  %kind.number = select i1 %is.text, i32 8, i32 %kind.index
  %kind.wide = zext i32 %kind.number to i64
  %kind.slot = getelementptr [11 x ptr], ptr @retune.kinds, i64 0, i64 %kind.wide
  %kind = load ptr, ptr %kind.slot, align 8
  %m1 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.no_tensor, ptr %where, ptr %what, ptr %kind)
  br label %raise.type
other.device:
  %m2 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr %text, i64 1024, ptr @retune.other_device, ptr %where, i32 %device)
  br label %raise.value
other.type:
  %lanes = lshr i32 %dtype, 16
  %one.lane = icmp eq i32 %lanes, 1
  br i1 %one.lane, label %scalar.type, label %vector.type
scalar.type:
  %code = and i32 %dtype, 255
  %bits.high = lshr i32 %dtype, 8
  %bits = and i32 %bits.high, 255
  %code.known = icmp ult i32 %code, 7
  %code.index = select i1 %code.known, i32 %code, i32 3
  %code.wide = zext i32 %code.index to i64
  %code.slot = getelementptr [7 x ptr], ptr @retune.codes, i64 0, i64 %code.wide
  %code.name = load ptr, ptr %code.slot, align 8
  %m3 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.other_type, ptr %where, ptr %what, ptr %code.name, i32 %bits)
  br label %raise.type
vector.type:
  %m4 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.other_lanes, ptr %where, ptr %what, i32 %lanes)
  br label %raise.type
other.rank:
  %m5 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.other_rank, ptr %where, ptr %what, i32 %rank)
  br label %raise.value
other.shape:
  %d32 = trunc i64 %d to i32
  %m6 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.other_shape, ptr %where, ptr %what, i64 %extent, i32 %d32)
  br label %raise.value
other.strides:
  %d32s = trunc i64 %d to i32
  %m7 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.other_strides, ptr %where, ptr %what, i64 %distance, i32 %d32s)
  br label %raise.value
other.address:
  %m8 = call i32 (ptr, i64, ptr, ...) @snprintf(
    ptr %text, i64 1024, ptr @retune.other_address, ptr %where, ptr %what)
  br label %raise.value
raise.type:
  call void @retune.raise(ptr @retune.type_error, ptr %text)
  ret ptr null
raise.value:
  call void @retune.raise(ptr @retune.value_error, ptr %text)
  ret ptr null
}

; The memory itself where it starts at a multiple of 64 bytes, else a copy that does; null where there is no room.
define internal ptr @retune.aligned(ptr %data, i64 %bytes, i64 %room) {
entry:
  %address = ptrtoint ptr %data to i64
  %low = and i64 %address, 63
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %done, label %apart
apart:
  %copy = call ptr @aligned_alloc(i64 64, i64 %room)
  %full = icmp eq ptr %copy, null
  br i1 %full, label %done, label %fill
fill:
  %same = call ptr @memcpy(ptr %copy, ptr %data, i64 %bytes)
  br label %done
done:
  %used = phi ptr [ %data, %entry ], [ null, %apart ], [ %copy, %fill ]
  ret ptr %used
}

; Gives a copy back, and writes it to where it is from if the kernel wrote it.
define internal void @retune.restore(ptr %data, ptr %used, i64 %bytes, i1 %written) {
entry:
  %same = icmp eq ptr %data, %used
  %none = icmp eq ptr %used, null
  %nothing = or i1 %same, %none
  br i1 %nothing, label %done, label %apart
apart:
  br i1 %written, label %write, label %drop
write:
  %back = call ptr @memcpy(ptr %data, ptr %used, i64 %bytes)
  br label %drop
drop:
  call void @free(ptr %used)
  br label %done
done:
  ret void
}

define internal void @retune.forget(ptr %tensor) {
entry:
  call void @free(ptr %tensor)
  ret void
}

; Makes a tensor of a kernel's memory, of the form given, for the time of a call; None where that fails.
define internal void @retune.lend(ptr %data, ptr %form, ptr %any) {
entry:
  %slot = getelementptr i8, ptr %any, i64 8
  store i64 0, ptr %any, align 8
  store ptr null, ptr %slot, align 8
  %tensor = call ptr @malloc(i64 64)
  %full = icmp eq ptr %tensor, null
  br i1 %full, label %done, label %fill
fill:
  %same = call ptr @memcpy(ptr %tensor, ptr %form, i64 64)
  store ptr %data, ptr %tensor, align 8
  %code = call i32 @TVMFFITensorFromDLPack(ptr %tensor, i32 0, i32 0, ptr %slot)
  %good = icmp eq i32 %code, 0
  br i1 %good, label %made, label %failed
made:
  store i64 70, ptr %any, align 8
  br label %done
failed:
  store ptr null, ptr %slot, align 8
  call void @free(ptr %tensor)
  br label %done
done:
  ret void
}

; Takes back what was lent: objects among the arguments.
define internal void @retune.drop(ptr %args, i32 %count) {
entry:
  %end = zext i32 %count to i64
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %look, label %done
look:
  %any = getelementptr { i64, ptr }, ptr %args, i64 %i
  %type = load i32, ptr %any, align 8
  %object = icmp eq i32 %type, 70
  br i1 %object, label %release, label %next
release:
  %slot = getelementptr i8, ptr %any, i64 8
  %handle = load ptr, ptr %slot, align 8
  %code = call i32 @TVMFFIObjectDecRef(ptr %handle)
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %test
done:
  ret void
}

; Calls the function of a name (a text and its length); 0, or -1 after an error.
define internal i32 @retune.call(ptr %name, ptr %missing, ptr %args, i32 %count) {
entry:
  %function = alloca ptr, align 8
  %result = alloca { i64, ptr }, align 8
  store ptr null, ptr %function, align 8
  store i64 0, ptr %result, align 8
  %value = getelementptr i8, ptr %result, i64 8
  store ptr null, ptr %value, align 8
  %found = call i32 @TVMFFIFunctionGetGlobal(ptr %name, ptr %function)
  %worked = icmp eq i32 %found, 0
  br i1 %worked, label %looked, label %failed
looked:
  %handle = load ptr, ptr %function, align 8
  %unknown = icmp eq ptr %handle, null
  br i1 %unknown, label %absent, label %known
known:
  %code = call i32 @TVMFFIFunctionCall(ptr %handle, ptr %args, i32 %count, ptr %result)
  %d1 = call i32 @TVMFFIObjectDecRef(ptr %handle)
  %type = load i32, ptr %result, align 8
  %object = icmp sge i32 %type, 64
  br i1 %object, label %drop, label %returned
drop:
  %owned = load ptr, ptr %value, align 8
  %d2 = call i32 @TVMFFIObjectDecRef(ptr %owned)
  br label %returned
returned:
  call void @retune.drop(ptr %args, i32 %count)
  %good = icmp eq i32 %code, 0
  %result.code = select i1 %good, i32 0, i32 -1
  ret i32 %result.code
absent:
  call void @retune.raise(ptr @retune.value_error, ptr %missing)
  br label %failed
failed:
  call void @retune.drop(ptr %args, i32 %count)
  ret i32 -1
}
"""
)
