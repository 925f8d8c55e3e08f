"""Checkpoints in the form of version 0.1: a plain safetensors file, and a manifest with the checksums of both."""

import json
from hashlib import sha256

from safetensors.torch import save


def manifest(rest: bytes) -> bytes:
    """A manifest, given without its opening brace: its own size and checksum come first."""
    head = '{{"own_size": {:12d}, "own_sha256": "{:64}", '
    size = len(head.format(0, "")) + len(rest)
    return head.format(size, sha256(rest).hexdigest()).encode() + rest


def write(path, content, facts, *, extra="", **changes):
    """Write both files; ``content`` is that of the first, or tensors by name."""
    content = content if isinstance(content, bytes) else save(content)
    facts = facts | {"size": len(content), "sha256": sha256(content).hexdigest()} | changes
    path.write_bytes(content)
    path.with_suffix(".json").write_bytes(manifest(f"{json.dumps(facts)[1:-1]}{extra}}}".encode()))
