"""Plays as characters, split among nodes by role.

`tinyshakespeare` is a cut of 1,115,394 characters from Shakespeare's plays (A. Karpathy 2015; public domain): 7,222 speeches,
each a line with the role and a colon, the words, and an empty line.

    >>> play = Play("ROMEO:\\nAy me!\\n\\nJULIET:\\nO Romeo, Romeo!\\n\\nROMEO:\\nI take thee at thy word.\\n")
    >>> list(play.by_role())
    ['ROMEO', 'JULIET']
    >>> play.decode(play.encode("Romeo"))
    'Romeo'
    >>> [len(part) for part in play.split(2, held_out=0.25).parts]
    [35, 19]
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from perron._registry import public_dir, unknown
from perron.data import datasets
from perron.errors import FileError, PerronError


class Split(NamedTuple):
    """The characters of each node for training, and those held out from every role for validation, as numbers."""

    parts: list[Tensor]
    validation: Tensor


class Play:
    """A text of speeches; a character is represented by its place in the vocabulary.

    Args:
        text: speeches, each a line ``ROLE:``, the words, and an empty line.

    Attributes:
        vocabulary: the characters that occur, in the order of their code points.
    """

    def __init__(self, text: str) -> None:
        self.text, self.vocabulary = text, "".join(sorted(set(text)))
        if not re.match(r"[^\n:]+:\n", text):
            raise PerronError(f"A play starts with a line that names a role, such as 'ROMEO:'; got {text[:40]!r}.")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.vocabulary)}

    def encode(self, text: str) -> Tensor:
        """Return the numbers of the characters, as a vector of int64."""
        if strange := sorted(set(text) - set(self.vocabulary)):
            raise PerronError(f"The vocabulary of {len(self.vocabulary)} characters does not contain {strange}.")
        return torch.tensor([self._numbers[character] for character in text], dtype=torch.int64)

    def decode(self, numbers: Tensor) -> str:
        """Return the characters with these numbers."""
        return "".join(self.vocabulary[number] for number in numbers.tolist())

    def by_role(self) -> dict[str, str]:
        """Return the speeches of each role, joined, with the lines that name it; roles are in the order of their first speech."""
        roles: dict[str, str] = {}
        for speech in re.split(r"(?<=\n\n)(?=[^\n:]+:\n)", self.text):
            role = speech[: speech.index(":")]
            roles[role] = roles.get(role, "") + speech
        return roles

    def split(self, nodes: int, *, held_out: float = 0.1) -> Split:
        """Give every node roles of its own, with about equally many characters, and hold out the end of each role.

        The last ``held_out`` of each role's characters, at least one, is for validation: it contains the roles of all nodes,
        in the same proportions as the data of all nodes together. Then roles are dealt out, the longest first, each to the
        node that has the fewest characters, so that two nodes differ by at most the length of one role. Nothing is random.
        """
        roles = self.by_role()
        if not 1 <= nodes <= len(roles):
            raise PerronError(f"{len(roles)} roles cannot be dealt out to {nodes} nodes; each needs at least one.")
        if not 0 < held_out < 1:
            raise PerronError(f"held_out is the part of each role for validation, between 0 and 1; got {held_out}.")
        cuts = {role: max(1, len(text) - max(1, round(held_out * len(text)))) for role, text in roles.items()}
        parts = [""] * nodes
        for role in sorted(roles, key=lambda role: (-cuts[role], role)):
            fewest = min(range(nodes), key=lambda node: len(parts[node]))
            parts[fewest] += roles[role][: cuts[role]]
        return Split(
            [self.encode(part) for part in parts],
            self.encode("".join(text[cuts[role] :] for role, text in roles.items())),
        )


def load(name: str = "tinyshakespeare", folder: str | Path | None = None) -> Play:
    """Load a text by name, from a directory, ``$PERRON_DATA/text`` or ``~/.cache/perron/text``."""
    if name not in datasets.TEXTS:
        raise unknown(name, datasets.TEXTS, "text")
    path, raw = datasets.read(datasets.locate(name, folder), f"{name}.txt")
    try:
        return Play(raw.decode("utf-8"))
    except (UnicodeDecodeError, PerronError) as error:
        raise FileError(f"{path} is not a play: {error}") from None


__dir__ = public_dir(__name__)
