"""Calendar arithmetic in kernels: parts, truncation, months.  Times are int64 µs UTC.

Days and dates convert by Howard Hinnant's algorithms (proleptic Gregorian calendar, no tables).
"""

from __future__ import annotations

from typing import Any

from edged.expressions.intrinsics import load_int64, rint_float64, sadd, smul, ssub, wmul, wsub
from edged.expressions.runtime import helper, inline, to_int64

US_PER_DAY = 86_400_000_000


@helper
def civil(day: Any) -> Any:
    """(year, month, day) of a day counted from 1970-01-01."""
    z = day + 719_468
    era = z // 146_097
    doe = z - era * 146_097
    yoe = (doe - doe // 1_460 + doe // 36_524 - doe // 146_096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    year = yoe + era * 400 + (1 if month <= 2 else 0)
    return year, month, doy - (153 * mp + 2) // 5 + 1


@helper
def days(year: Any, month: Any, day: Any) -> Any:
    """The day, counted from 1970-01-01, of a date."""
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    doe = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return era * 146_097 + doe - 719_468


@helper
def year(us: Any) -> Any:
    """Calendar year."""
    return civil(us // US_PER_DAY)[0]


@helper
def month(us: Any) -> Any:
    """1 to 12."""
    return civil(us // US_PER_DAY)[1]


@helper
def day(us: Any) -> Any:
    """Day of the month."""
    return civil(us // US_PER_DAY)[2]


@helper
def quarter(us: Any) -> Any:
    """1 to 4."""
    return (civil(us // US_PER_DAY)[1] + 2) // 3


@helper
def doy(us: Any) -> Any:
    """Day of the year, from 1."""
    d = us // US_PER_DAY
    return d - days(civil(d)[0], 1, 1) + 1


@inline
def isodow(us: Any) -> Any:
    """1 (Monday) to 7 (Sunday)."""
    return (us // US_PER_DAY + 3) % 7 + 1


@inline
def dow(us: Any) -> Any:
    """0 (Sunday) to 6."""
    return (us // US_PER_DAY + 4) % 7


@helper
def week(us: Any) -> Any:
    """ISO week: the week of the year that its Thursday is in."""
    d = us // US_PER_DAY
    thursday = d - (d + 3) % 7 + 3
    return (thursday - days(civil(thursday)[0], 1, 1)) // 7 + 1


@inline
def hour(us: Any) -> Any:
    """0 to 23."""
    return us % US_PER_DAY // 3_600_000_000


@inline
def minute(us: Any) -> Any:
    """0 to 59."""
    return us % 3_600_000_000 // 60_000_000


@inline
def second(us: Any) -> Any:
    """0 to 59."""
    return us % 60_000_000 // 1_000_000


@inline
def millisecond(us: Any) -> Any:
    """Milliseconds of the minute, as in DuckDB."""
    return us % 60_000_000 // 1_000


@inline
def microsecond(us: Any) -> Any:
    """Microseconds of the minute, as in DuckDB."""
    return us % 60_000_000


@inline
def milliseconds(us: Any) -> Any:
    """The whole time in milliseconds, rounded half away from zero."""
    whole = us // 1_000
    rest = us % 1_000
    return whole + (rest >= (500 if us >= 0 else 501))


@inline
def out_of_range(us: Any) -> Any:
    """Whether a time is outside DuckDB's finite timestamps."""
    return (us < -9_223_372_022_400_000_000) | (us == 9_223_372_036_854_775_807)


@inline
def trunc_fixed(us: Any, unit: Any) -> Any:
    """The last multiple of `unit` µs."""
    return wsub(us, us % unit)


@inline
def trunc_week(us: Any) -> Any:
    """Midnight of the week's Monday."""
    d = us // US_PER_DAY
    return wmul(d - (d + 3) % 7, US_PER_DAY)


@helper
def trunc_months(us: Any, months: Any) -> Any:
    """Midnight of the first day of the month, quarter (3) or year (12)."""
    y, m, _ = civil(us // US_PER_DAY)
    return wmul(days(y, (m - 1) // months * months + 1, 1), US_PER_DAY)


@helper
def add_months(us: Any, months: Any) -> Any:
    """`(time, overflowed)`: `months` later on the same day, or on the month's last day."""
    d = us // US_PER_DAY
    y, m, dom = civil(d)
    index = y * 12 + m - 1 + months
    y, m = index // 12, index % 12 + 1
    last = days(y + m // 12, m % 12 + 1, 1) - days(y, m, 1)
    start, bad = smul(days(y, m, min(dom, last)), US_PER_DAY)
    moved, past = sadd(start, us % US_PER_DAY)
    return moved, bad | past


@helper
def bucket(us: Any, width: Any, origin: Any) -> Any:
    """`(start, overflowed)` of the bucket of `width` µs that holds the time."""
    shifted, bad = ssub(us, origin)
    start = wmul(shifted // width, width)
    moved, past = sadd(start, origin)
    return moved, bad | (start > shifted) | past


_CYCLE_US = 146_097 * US_PER_DAY
_TABLE_END_US = 16_725_225_600_000_000
"""2500-01-01: later times have the offsets of 400 years earlier."""


@helper
def zone_shift(us: Any, table: Any, size: Any, local: Any) -> Any:
    """`(time, overflowed)`: UTC as a zone's local time, or with `local` the reverse.

    A local time that occurs twice is the later one; one that does not occur has the offset from
    before the change.  `table` is one of `edged.expressions.zones`.
    """
    at = us
    if us >= _TABLE_END_US:
        at -= ((us - _TABLE_END_US) // _CYCLE_US + 1) * _CYCLE_US
    low, high = 0, size // 16
    while high - low > 1:
        middle = (low + high) // 2
        moment = load_int64(table, 2 * middle)
        if local:
            moment += load_int64(table, 2 * middle + 1)
        if moment <= at:
            low = middle
        else:
            high = middle
    offset = load_int64(table, 2 * low + 1)
    return ssub(us, offset) if local else sadd(us, offset)


@helper
def seconds_us(seconds: Any) -> Any:
    """`(µs, overflowed)` of seconds as a double, rounded half to even."""
    us = rint_float64(seconds * 1000000.0)
    return to_int64(us), not (-9223372036854775808.0 < us < 9223372036854775808.0)


@helper
def ordinal_months(us: Any, months: Any) -> Any:
    """The number of the month, quarter (3) or year (12) of a time."""
    y, m, _ = civil(us // US_PER_DAY)
    return (y * 12 + m - 1) // months


@inline
def ordinal_fixed(us: Any, unit: Any) -> Any:
    """The number of the unit of a fixed length."""
    return us // unit


@helper
def bucket_at(us: Any, origin: Any, width: Any) -> Any:
    """`bucket` with an origin that is a value."""
    return bucket(us, width, origin)
