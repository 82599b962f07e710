"""Kernels for the CPU.  Importing a module registers its kernels; nothing compiles on import."""
