"""Times and errors as a person reads them in a terminal."""


def duration(seconds: float) -> str:
    """'0.4 s', '40 s', '12 min', '3.5 h'."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def in_digits(value: float, like: float | None = None) -> str:
    """An error in six or seven characters: '0.0507', '12.345', '1234.5', '1.2e+06', '1.2e-05'.

    `like` is the value whose digits decide, for its standard error or a difference from it.
    """
    size = abs(value if like is None else like)
    if size != 0 and not 1e-3 <= size < 99999:
        return f"{value:.1e}"
    whole = len(str(int(size)))
    return f"{value:.{max(0, 5 - whole)}f}"


def with_error(mean: float, stderr: float) -> str:
    return f"{in_digits(mean)} ± {in_digits(stderr, like=mean)}"
