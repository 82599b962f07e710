"""Declared records: places, sizes, documentation, and use on arrays and at addresses."""

from typing import NamedTuple

import numba
import numpy as np
import pytest

from kernels.cpu import mem
from kernels.cpu.records import I64, U32, field, get, offsets, put, size_of, words


class _Queue(NamedTuple):
    """A queue."""

    taken: U32 = field("messages taken")
    put: U32 = field("messages put", at=64)
    slots: U32 = field("messages", at=128, length=4)
    total: I64 = field("messages ever")


class _Words(NamedTuple):
    """Words."""

    first: I64 = field("the first")
    pair: I64 = field("two values", length=2)
    last: I64 = field("the last", at=64)


QUEUE, WORDS = offsets(_Queue), words(_Words)


@numba.njit
def _copy(array, address):
    array[WORDS.last] = array[WORDS.first]
    array[WORDS.pair + 1] = get(address, WORDS.first)
    put(address, WORDS.pair, mem.load_u32(address))


def test_places_follow_from_the_widths_the_gaps_and_the_lengths():
    assert tuple(QUEUE) == (0, 64, 128, 144)
    assert size_of(_Queue) == 152
    assert tuple(WORDS) == (0, 1, 8)
    assert size_of(_Words) == 72


def test_the_docstring_names_every_field_with_its_place_and_type():
    assert [line.split(None, 3) for line in _Queue.__doc__.splitlines()[2:]] == [
        ["0", "uint32", "taken", "messages taken"],
        ["64", "uint32", "put", "messages put"],
        ["128", "uint32[4]", "slots", "messages"],
        ["144", "int64", "total", "messages ever"],
    ]


def test_compiled_code_uses_places_in_arrays_and_at_addresses():
    array = np.zeros(9, np.int64)
    array[WORDS.first] = 7
    _copy(array, array.ctypes.data)
    assert array.tolist() == [7, 7, 7, 0, 0, 0, 0, 0, 7]


def test_a_record_of_words_has_fields_of_8_bytes_only():
    with pytest.raises(TypeError, match="_Queue has fields that are not 8 bytes wide"):
        words(_Queue)


def test_a_field_that_lies_on_the_one_before_it_is_refused():
    class Wrong(NamedTuple):
        """Wrong."""

        first: I64 = field("the first", length=2)
        second: I64 = field("the second", at=8)

    with pytest.raises(TypeError, match=r"Wrong\.second begins at 8, before 16"):
        words(Wrong)
