"""Names for the array types that columns have."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Codes: TypeAlias = NDArray[np.int8]
Ranks: TypeAlias = NDArray[np.int16]

A = TypeVar("A", bound=NDArray[Any])


def frozen(array: A) -> A:
    """The array, from now on read-only."""
    array.flags.writeable = False
    return array
