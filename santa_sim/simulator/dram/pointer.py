"""A plain pointer to an array's data, for compiled code that calls many small functions.

Numba passes an array as seven values, counts references around each call and wraps negative indices at each access. A
pointer costs none of it; it lives no longer than the array, which the caller keeps.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload


@intrinsic
def _data(typingctx, array):
    """Pointer to the first element of a contiguous array."""
    pointer = types.CPointer(array.dtype)

    def codegen(context, builder, signature, args):
        return cgutils.create_struct_proxy(array)(context, builder, args[0]).data

    return pointer(array), codegen


def pointer_to(array: np.ndarray) -> np.ndarray:
    """The data of a contiguous array, to be indexed like it; compiled, a bare pointer."""
    return array


@overload(pointer_to)
def _pointer_to(array):
    return lambda array: _data(array)
