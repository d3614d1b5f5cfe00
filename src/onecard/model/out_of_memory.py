"""Whether an error means that memory ran out, on whatever device and in whatever wrapping.

>>> is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 9.03 GB)"))
True
>>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
False
"""

import gc
import re

import torch

from onecard.errors import OnecardError

# What the allocators and libraries write where they raise a plain RuntimeError, OSError or AcceleratorError:
_TEXTS = re.compile(
    r"out of memory"  # CUDA's caching allocator, "CUDA error: out of memory", MPS, HIP, XPU
    r"|can't allocate memory|cannot allocate memory"  # torch's CPU allocator, and ENOMEM on Linux
    r"|not enough memory"  # torch's CPU allocator on Windows
    r"|insufficient memory|insufficient resources to complete the operation"
    r"|(?:CUBLAS|CUSOLVER|CUSPARSE|HIPBLAS|ROCBLAS|CUDNN|CUFFT)_STATUS_\w*?ALLOC\w*FAILED"
    r"|hipErrorOutOfMemory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    r"|UR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY|ZE_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY"
    r"|OutOfMemoryError"  # quoted by a compiler that met it
    r"|std::bad_alloc|DefaultCPUAllocator: not enough"
    r"|Unable to allocate [\d.]+ \w*B\b",  # numpy
    re.IGNORECASE,
)
_MOST_TEXT = 100_000  # characters of a message that are searched
_DEEPEST = 20  # errors that caused one another


def is_out_of_memory(error: BaseException | None) -> bool:
    """By type, by text, or by the error that caused this one (a compiler wraps what it meets while tuning)."""
    for _ in range(_DEEPEST):
        if error is None or isinstance(error, OnecardError):
            return False
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, Exception) and _TEXTS.search(str(error)[:_MOST_TEXT]):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def free_cached_memory() -> None:
    """Give back what failed work left behind, so that a smaller piece of it finds room."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
