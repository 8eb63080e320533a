"""Loads the library of the TVM FFI without its Python package.

A library of functions that is linked with it can then be loaded by `ctypes.CDLL` before any use of the FFI. The Python
package, when imported, uses the loaded library.
"""

import ctypes
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def load_ffi_library() -> None:
    """Load it, with symbols visible to other libraries; if it is missing, the first use of the FFI reports that."""
    if "tvm_ffi" in sys.modules:
        return
    package = find_spec("tvm_ffi")
    for folder in (package and package.submodule_search_locations) or ():
        with suppress(OSError):
            # The loader finds a loaded dependency by its soname, so libraries linked with it need no search path.
            ctypes.CDLL(str(Path(folder) / "lib" / "libtvm_ffi.so"), ctypes.RTLD_GLOBAL)
