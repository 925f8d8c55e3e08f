"""Trackers that are mixed after the new gradient is added."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from perron.algorithms.moves import Descent, Moving
from perron.algorithms.node import Handle


class Late(Handle):
    """The exchange y = M (b z) + (1 - b) z of a tracker z = y_prev + g - g_prev.

    b is the field ``begun`` of the state: 1, but for the first step, where it is 0 (see `begun`). With y_prev = g_prev = 0 the
    tracker so starts at the gradient itself, y_0 = g_0, as published, and not at M g_0. The first exchange carries zeros: what is
    sent is linear in z at every step, so that codecs and links keep account of it, and every step has the same exchanges.
    """

    __slots__ = ("_handle", "_share", "_z")

    def __init__(self, exchange: Callable[[Tensor], Handle], z: Tensor, begun: Tensor) -> None:
        self._handle = exchange(begun * z)
        self._share, self._z = 1 - begun, z

    def wait(self) -> Tensor:
        return torch.addcmul(self._handle.wait(), self._share, self._z)


def begun(algorithm: Moving, x: Tensor) -> Tensor:
    """Return the initial ``begun`` of a late tracker: 0 with plain descent, as published, and 1 with any other move.

    What a move remembers of a first tracker that was not mixed would stay: with complete averaging, AdamW on mixed trackers is
    AdamW on the mean gradient, and momentum of mixed trackers is the tracker of the nodes' momenta.
    """
    one = torch.ones_like(x[..., :1])
    return 0 * one if isinstance(algorithm.move, Descent) else one
