"""Times, sizes and numbers in words."""

from __future__ import annotations

from itertools import pairwise

YEAR = 365.25 * 86400


def duration(seconds: float | None) -> str:
    """A time in words; a dash if unknown.

    Example:
        >>> duration(8.41), duration(754), duration(7501), duration(400_000), duration(None)
        ('8.4 s', '12 min 34 s', '2 h 5 min', '4 d 15 h', '–')
        >>> duration(1e11)
        '3,169 years'
    """
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 59.95:
        return f"{seconds:.3g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds > 2 * YEAR:
        return f"{seconds / YEAR:,.0f} years"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (name, size), (next_name, next_size) in pairwise(units):
        whole = round(seconds / next_size) * next_size  # so that 59.9 min are an hour
        if whole >= size:
            return f"{whole // size} {name} {whole % size // next_size} {next_name}"
    raise AssertionError(seconds)


def roughly(seconds: float) -> str:
    """An estimated time in words, without digits that suggest precision.

    Example:
        >>> roughly(0.48), roughly(8.41), roughly(754), roughly(13_340), roughly(400_000)
        ('a second', '8 s', '13 min', '3 h 42 min', '4 d 15 h')
    """
    if seconds < 1.5:
        return "a second"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 59.5 * 60:
        return f"{seconds / 60:.0f} min"
    return duration(seconds)


def counted(count: int, what: str) -> str:
    """A number and what it counts, a noun in the singular.

    Example:
        >>> counted(1, "thread"), counted(1200, "thread")
        ('1 thread', '1,200 threads')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def amount(count: int | None) -> str:
    """A number of bytes in words.

    Example:
        >>> amount(512), amount(3_000_000), amount(5_000_000_000), amount(None)
        ('0.5 KiB', '2.9 MiB', '4.7 GiB', 'not known')
    """
    if count is None:
        return "not known"
    value, unit = count / 2**10, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value >= 1000:
            value, unit = value / 2**10, larger
    return f"{value:.1f} {unit}"
