"""The error of the simulated GPU."""

from retune.compiler.core.errors import RetuneError


class KernelFaultError(RetuneError):
    """Threads of a kernel race, access invalid or uninitialized memory, or do not all reach a barrier."""
