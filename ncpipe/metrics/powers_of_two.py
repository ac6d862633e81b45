"""Scale by powers of two, which keep squares and products within float64's range.

Multiplying by a power of two is exact, so it changes nothing but what would have left the range.
"""

from __future__ import annotations

import math

from ncpipe.system.lazy_torch import Tensor, torch

EPS = 2.0**-52  # relative spacing of float64's numbers
# Sizes from 2^-150 to 2^150, all of float32's among them, are taken as they are: their fourth powers stay in
# range, and so do squares of 1e-60 of them.
SAFE_EXPONENT = 150
MAX_STEP = 1000  # 2.0**1074 is none of float64's numbers


def rounding_of(dtype: torch.dtype) -> float:
    """Return the share of the largest singular value up to which others are rounding of a network in `dtype`.

    0 of float64, for which each function has its own. Of float32 16 spacings: layer normalisation and
    bottlenecks leave up to 0.1 of one, after a mean that is 100 times the rest 100. Of half types a quarter
    of one: more would be the size of true directions.
    """
    if dtype == torch.float64:
        return 0.0
    return torch.finfo(dtype).eps * (16 if dtype == torch.float32 else 0.25)


def entry_rounding_of(dtype: torch.dtype) -> float:
    """Return the share of each entry by which half types round it, in root mean square; 0 of other types.

    A network in half precision adds up in float32, so that entries alone are rounded: what a large one loses
    is in no other.
    """
    return rounding_of(dtype) if torch.finfo(dtype).bits <= 16 else 0.0


def size_exponent(size: float) -> int:
    """Return e with 2^(e-1) <= size < 2^e; 0 for 0, inf and NaN."""
    return math.frexp(size)[1] if math.isfinite(size) else 0


def unit_exponent(exponent: int) -> int:
    """Return the exponent of the unit for sizes near 2^exponent; 0 where no unit is needed."""
    return exponent if abs(exponent) > SAFE_EXPONENT else 0


def unit_of(array: Tensor) -> int:
    """Return the exponent of the unit for the entries of an array."""
    return unit_exponent(size_exponent(largest_entry(array)))


def largest_entry(array: Tensor) -> float:
    """Return max |entry|; 0 for an empty tensor, NaN where an entry is NaN."""
    if not array.numel():
        return 0.0
    least, most = torch.aminmax(array.float() if array.element_size() == 1 else array)  # float8 has no order
    return max(-least.item(), most.item()) if most.isfinite() else most.item()


def times_two_to(array: Tensor, exponent: int) -> Tensor:
    """Return array * 2^exponent in float64, for any exponent; inf or 0 where float64 ends."""
    while exponent:
        step = max(-MAX_STEP, min(MAX_STEP, exponent))
        array, exponent = array * 2.0**step, exponent - step
    return array


def value_times_two_to(value: float, exponent: int) -> float:
    """Return value * 2^exponent of one number; inf or 0 where float64 ends."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)


def row_scales(rows: Tensor) -> Tensor:
    """Return a power of two near each row's largest entry, (n, d) -> (n, 1); 1 for zeros, inf or NaN.

    The rows over it are exact, and their lengths neither over- nor underflow.
    """
    sizes = rows.abs().amax(1, keepdim=True)
    mantissas, _ = torch.frexp(sizes)
    scales = sizes / (2 * mantissas)
    return torch.where(scales > 0, scales, 1.0)
