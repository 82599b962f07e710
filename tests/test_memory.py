"""Memory that a start needed is given back, and what is used again comes back."""

import subprocess
import sys

PROGRAM = """
import re
import numba
import pyarrow.compute as pc
from edged.platform.memory import release_code

def resident():
    text = open("/proc/self/status").read()
    return int(re.search(r"RssFile:\\s+(\\d+)", text)[1])

@numba.njit
def total(n):
    s = 0
    for i in range(n):
        s += i
    return s

found = total(10), pc.sum([1, 2, 3]).as_py()
before = resident()
assert release_code() > 50 << 20
after = resident()

@numba.njit
def scaled(x):
    return x * 2.5

assert (total(10), pc.sum([1, 2, 3]).as_py()) == found == (45, 6)
assert scaled(2.0) == 5.0
print(before, after)
"""


def test_code_of_the_start_is_unmapped_and_comes_back_where_it_is_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < before / 2
