"""What a block of threads does together: an exclusive prefix sum, and a stable sort.

Both work for any number of threads up to `THREADS_MAX`, with shared memory and barriers alone (no
warp intrinsics), so that the simulator runs what the GPU runs.  Every thread of the block must call
them.

`sort_by_key` is a radix sort of 4 bits a pass.  Each thread owns a contiguous piece of the input;
it counts its digits, the counts are summed in the order (digit, thread), and each thread then puts
its elements, in order, where its counts say: equal keys keep their order, with no atomics.
"""

from __future__ import annotations

from typing import Any

from kernels.cuda.gpu import THREADS_MAX, cuda
from kernels.registry import cuda_device

RADIX_BITS = 4
DIGITS = 1 << RADIX_BITS
COUNTERS = DIGITS * THREADS_MAX
"""Size of the shared array (int32) that a sort counts in."""


@cuda_device
def exclusive_sum(partial: Any, value: int) -> Any:
    """(the sum of the lower threads' values, the sum of all); `partial` is shared int64[256]."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    partial[t] = value
    cuda.syncthreads()
    step = 1
    while step < threads:
        below = 0
        if t >= step:
            below = partial[t - step]
        cuda.syncthreads()
        partial[t] += below
        cuda.syncthreads()
        step *= 2
    upto, total = partial[t], partial[threads - 1]
    cuda.syncthreads()
    return upto - value, total


@cuda_device
def sort_pass(
    keys: Any,
    order: Any,
    keys_out: Any,
    order_out: Any,
    first: int,
    n: int,
    shift: int,
    counters: Any,
    partial: Any,
) -> None:
    """Elements first..first + n, by 4 bits of their keys from `shift` on, into the other arrays."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    piece = (n + threads - 1) // threads
    low, high = min(n, t * piece), min(n, t * piece + piece)
    for digit in range(DIGITS):
        counters[digit * threads + t] = 0
    for i in range(first + low, first + high):
        counters[((keys[i] >> shift) & (DIGITS - 1)) * threads + t] += 1
    cuda.syncthreads()
    mine = 0
    for k in range(t * DIGITS, t * DIGITS + DIGITS):
        mine += counters[k]
    at, _ = exclusive_sum(partial, mine)
    for k in range(t * DIGITS, t * DIGITS + DIGITS):
        count = counters[k]
        counters[k] = at
        at += count
    cuda.syncthreads()
    for i in range(first + low, first + high):
        k = ((keys[i] >> shift) & (DIGITS - 1)) * threads + t
        target = first + counters[k]
        counters[k] += 1
        keys_out[target], order_out[target] = keys[i], order[i]
    cuda.syncthreads()


@cuda_device
def sort_by_key(
    keys: Any,
    order: Any,
    keys_spare: Any,
    order_spare: Any,
    first: int,
    n: int,
    mask: int,
    counters: Any,
    partial: Any,
) -> None:
    """Sort elements first..first + n of `keys` (all <= `mask`), with `order`; stable.

    `counters` is shared int32[COUNTERS].  The result lies in `keys` and `order`: an odd number of
    passes is made even by one more, over bits that are all zero.
    """
    shift = 0
    while shift == 0 or (mask >> shift) > 0:
        sort_pass(keys, order, keys_spare, order_spare, first, n, shift, counters, partial)
        sort_pass(
            keys_spare, order_spare, keys, order, first, n, shift + RADIX_BITS, counters, partial
        )
        shift += 2 * RADIX_BITS
