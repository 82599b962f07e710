"""Kernels for NVIDIA GPUs: one module an idea, registered with `kernels.registry.cuda_kernel`."""
