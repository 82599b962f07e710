"""numba's CUDA simulator, made faster. It still runs the Python of the kernels.

`quicken` replaces, in a process that has chosen the simulator (numba-cuda 0.30):

- the block's barrier, which numba's main thread polls: the last thread to arrive wakes the others,
  and ended threads are not waited for;
- shared arrays, of which numba gives each of several concurrent callers its own;
- the wrapper around arrays, which adds record fields that no kernel uses, by the array itself;
- the exchange of each module's `cuda` around every call of a device function, by one for a launch.

Threads stay threads, and the interpreter switches between them at any bytecode, so data races of
kernels stay visible. If a thread fails, every barrier releases the others, and the launch fails.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager

import numpy as np
from numba.cuda.simulator import kernel, kernelapi
from numba.np.numpy_support import as_dtype

SWITCH_S = 2e-5
"""The interpreter's: short, so that threads meet in the middle of a kernel."""


class Failed(Exception):
    """Another thread of the block has failed."""


class Barrier:
    """Where the threads of a block wait for each other; as many as are alive."""

    def __init__(self, threads):
        self.alive, self.failed = threads, False
        self._lock, self._waiting = threading.Lock(), []

    def wait(self):
        """Return when all that are alive wait.  Raises Failed where one has failed."""
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            self._waiting.append(gate)
            self._open()
        gate.acquire()
        if self.failed:
            raise Failed

    def leave(self, failed):
        """The thread that calls it has ended."""
        with self._lock:
            self.alive -= 1
            self.failed |= failed
            self._open()

    def _open(self):
        if self.failed or len(self._waiting) == self.alive:
            waiting, self._waiting = self._waiting, []
            for gate in waiting:
                gate.release()


class BlockThread(kernel.BlockThread):
    """A thread of a block."""

    def run(self):
        super().run()
        self._manager.barrier.leave(self.exception is not None)

    def syncthreads(self):
        """Wait for the others."""
        self._manager.barrier.wait()


def run_block(manager, grid_point, *args):
    """`BlockManager.run`."""
    threads = [
        BlockThread(lambda: manager._f(*args), manager, grid_point, point, False)
        for point in np.ndindex(*manager._block_dim)
    ]
    manager.barrier = Barrier(len(threads))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    problems = [t.exception for t in threads if t.exception is not None]
    if problems:
        first = next((p for p in problems if not isinstance(p[0], Failed)), problems[0])
        raise first[0].with_traceback(first[1])


SHARING = threading.Lock()


def shared_array(block, shape, dtype):
    """`cuda.shared.array`: one array for each place in the source; rubbish at first."""
    caller = sys._getframe(1)
    place = caller.f_code.co_filename, caller.f_lineno
    with SHARING:
        if place not in block._allocations:
            block._allocations[place] = np.full(shape, 113, as_dtype(dtype))
        return block._allocations[place]


def modules():
    """The modules of the kernels; their `cuda` is the one of the launch under way."""
    return [vars(m) for name, m in sys.modules.items() if name.startswith("kernels.cuda.")]


@contextmanager
def launched(fn, cuda):
    """`swapped_cuda_module`, for all modules of the kernels."""
    before = [(names, names["cuda"]) for names in modules() if "cuda" in names]
    for names, _ in before:
        names["cuda"] = cuda
    try:
        yield
    finally:
        for names, real in before:
            names["cuda"] = real


def quicken():
    """Do it, for the rest of this process."""
    called = kernel.FakeCUDAKernel.__call__

    def call(self, *args):
        return self.fn(*args) if kernel._kernel_context else called(self, *args)

    kernel.FakeCUDAKernel.__call__ = call
    kernel.FakeWithinKernelCUDAArray = lambda wrapped: wrapped._ary
    kernel.BlockManager.run = run_block
    kernel.swapped_cuda_module = launched
    kernelapi.FakeCUDAShared.array = shared_array
    sys.setswitchinterval(SWITCH_S)
