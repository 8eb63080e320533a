"""A buffer of each kind of memory of a GPU."""

from retune.compiler.ir.expr import Buffer

X = Buffer("x", (8, 32), "float32")


S = Buffer("s", (32,), "float32", "shared")
