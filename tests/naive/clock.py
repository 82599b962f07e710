"""The chain of `kernels.cpu.clock`, on Python's own numbers."""


def turn(value: int, mask: int, count: int) -> int:
    for i in range(count):
        value = (value ^ mask) + i
        value = (value + 2**63) % 2**64 - 2**63
    return value
