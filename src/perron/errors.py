"""What can go wrong, on one page.

    PerronError (a ValueError)
    |-- GraphError        a graph that is not one, or cannot do what is asked of it
    |-- MixingError       matrices that would mix wrongly
    |-- SpectralError     a metric that cannot be computed for this matrix
    |-- FileError         a file that does not hold what it should
    |-- UnknownNameError  a name or an option that does not exist
    |-- FailedError       what was asked for was tried, and some of it failed
    `-- NetworkError      a neighbour that is gone or silent

Every message says what is wrong, what was found, and the remedy. The command line prints it without a traceback.
"""

__all__ = [
    "FailedError",
    "FileError",
    "GraphError",
    "MixingError",
    "NetworkError",
    "PerronError",
    "SpectralError",
    "UnknownNameError",
]


class PerronError(ValueError):
    """Base of every error that perron raises on purpose."""


class GraphError(PerronError):
    """A graph that is not one, or cannot do what is asked of it."""


class MixingError(PerronError):
    """Matrices that would mix wrongly."""


class SpectralError(PerronError):
    """A metric that cannot be computed for this matrix."""


class FileError(PerronError):
    """A file that does not hold what it should."""


class UnknownNameError(PerronError):
    """A name or an option that does not exist."""


class FailedError(PerronError):
    """What was asked for was tried, and some of it failed: the command line ends with code 3 instead of 1."""


class NetworkError(PerronError):
    """A neighbour that is gone or silent."""


def listed(items: object, limit: int = 6, *, sep: str = ", ") -> str:
    """``0, 1, 2, ... (97 more)``: a short list for an error message."""
    parts = [str(item) for item in items]  # type: ignore[attr-defined]
    shown = sep.join(parts[:limit])
    return f"{shown}{sep}... ({len(parts) - limit} more)" if len(parts) > limit else shown


def brief(value: object, limit: int = 80) -> str:
    """A value as an error message shows it: on one line, and not all of it."""
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
