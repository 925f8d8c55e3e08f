"""Scripts of this folder, run in several processes."""

import subprocess
import sys
from pathlib import Path


def started(script, n, folder, *arguments):
    """A script in n processes, with rank, size and folder as arguments."""
    command = [sys.executable, str(Path(__file__).parent / script)]
    return [
        subprocess.Popen(
            [*command, str(rank), str(n), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]


def launched(script, n, folder, *arguments, timeout=120):
    """Run it to its end; outputs, errors and exit codes."""
    return [(*one.communicate(timeout=timeout), one.returncode) for one in started(script, n, folder, *arguments)]
