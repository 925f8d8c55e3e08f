"""All errors that perron raises deliberately.

A `PerronError` is a ValueError. Every message contains the problem, the value at fault and a remedy. The command line prints it
without a traceback.
"""

from unicodedata import bidirectional, category

__all__ = [
    "DivergenceError",
    "FailedError",
    "FileError",
    "FormatError",
    "GraphError",
    "MixingError",
    "NetworkError",
    "PerronError",
    "SpectralError",
    "TrainingFinishedError",
    "UnknownNameError",
]


def __dir__() -> list[str]:
    return __all__


NO_TORCH = (
    "perron needs PyTorch, which is not installed. For CPUs: uv pip install torch --torch-backend cpu, or the command that "
    "pytorch.org shows for pip and CPU (a plain pip install torch also fetches gigabytes of CUDA on Linux)."
)
EMBEDDINGS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # characters that change the order of text


class PerronError(ValueError):
    """Base class of every error that perron raises deliberately."""


class GraphError(PerronError):
    """An invalid graph, or one that an operation does not support."""


class MixingError(PerronError):
    """Invalid mixing matrices."""


class SpectralError(PerronError):
    """A metric that is undefined or too expensive for this matrix."""


class FileError(PerronError):
    """A file that cannot be read or written."""


class FormatError(FileError):
    """An intact file in a format, or a version of it, that this version of perron does not read."""


class UnknownNameError(PerronError):
    """A name or an option that does not exist."""


class FailedError(PerronError):
    """Some parts of a requested operation failed: the command line exits with code 3 instead of 1."""


class NetworkError(PerronError):
    """A neighbor that failed or does not respond."""


class DivergenceError(PerronError):
    """Numbers that are not finite: a gradient, a message or a state. It ends the training on all nodes."""


class TrainingFinishedError(NetworkError):
    """A process that was started again after its elastic training had finished."""


def listed(items: object, limit: int = 6, *, sep: str = ", ") -> str:
    """Format items for an error message: ``0, 1, 2, ... (97 more)``."""
    parts = [str(item) for item in items]  # type: ignore[attr-defined]
    shown = sep.join(parts[:limit])
    return f"{shown}{sep}... ({len(parts) - limit} more)" if len(parts) > limit else shown


def brief(value: object, limit: int = 80) -> str:
    """Format a value for an error message: on one line, truncated."""
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."


def strip_control(text: str) -> str:
    """Return text without the characters that steer a terminal or reorder its lines: files may come from anywhere.

    >>> strip_control("a\\x1b[2J title\\x07 of\\ntwo lines")
    'a[2J title of two lines'
    """
    return "".join(
        " " if mark in "\t\n\r" else mark
        for mark in text
        if mark in "\t\n\r" or not (category(mark) in ("Cc", "Cs") or bidirectional(mark) in EMBEDDINGS)
    )
