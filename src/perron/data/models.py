"""Neural networks: for images, by name, a multilayer perceptron, a small convolutional network and ResNet-18; for text, a GPT.

Weights are initialized by torch's layers, from torch's global generator: call `torch.manual_seed` first for reproducible ones.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from itertools import pairwise
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from perron._registry import lookup, options_model, public_dir, validate
from perron.errors import PerronError

HEAD = 32  # coordinates of an attention head


def mlp(inputs: int, classes: int, *, hidden: tuple[int, ...] = (1024, 1024)) -> nn.Sequential:
    """A multilayer perceptron with ReLU between its layers.

    >>> sum(parameter.numel() for parameter in mlp(784, 10).parameters())
    1863690
    """
    _positive(inputs=inputs, classes=classes, hidden=min(hidden, default=1))
    layers: list[nn.Module] = [nn.Flatten()]
    for size, following in pairwise((inputs, *hidden, classes)):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # no ReLU after the last


def convnet(channels: int, classes: int, *, width: int = 16) -> nn.Sequential:
    """Two convolutions, each with pooling, and a linear layer; no BatchNorm. Images of any size end as 4 x 4."""
    _positive(channels=channels, classes=classes, width=width)
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(2 * width * 16, classes),
    )  # fmt: skip


def resnet18(channels: int, classes: int, *, width: int = 64) -> nn.Sequential:
    """ResNet-18 in its variant for CIFAR-10: a stem of 3 x 3 without pooling, then stages of ``width`` times 1, 2, 4, 8.

    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2016).
    """
    _positive(channels=channels, classes=classes, width=width)
    layers: list[nn.Module] = [_convolution(channels, width, 3, 1), nn.ReLU()]
    before = width
    for stage in range(4):
        wide = width * 2**stage
        layers += [BasicBlock(before, wide, stride=2 if stage else 1), BasicBlock(wide, wide)]
        before = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut around them, which is a projection where the shape changes."""

    def __init__(self, channels: int, wide: int, *, stride: int = 1) -> None:
        super().__init__()
        self.first = _convolution(channels, wide, 3, stride)
        self.second = _convolution(wide, wide, 3, 1)
        changes = stride > 1 or channels != wide
        self.around = _convolution(channels, wide, 1, stride) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.around(x))


class GPT(nn.Module):
    """A decoder-only transformer with learned positions: tokens ``(batch, context)`` to logits ``(batch, tokens, context)``.

    The logits at each position are of the next token, in the layout of `torch.nn.functional.cross_entropy`. Heads have 32
    coordinates; layers are normalized first (pre-LN).

    >>> sum(parameter.numel() for parameter in GPT(65).parameters())
    1016513
    """

    def __init__(self, tokens: int, *, context: int = 64, width: int = 128, depth: int = 5) -> None:
        super().__init__()
        _positive(tokens=tokens, context=context, width=width, depth=depth)
        if width % HEAD:
            raise PerronError(f"The width of a GPT is a multiple of {HEAD}, the size of a head; got {width}.")
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(context, width)
        blocks = (TransformerBlock(width) for _ in range(depth))
        self.rest = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.rest(self.embed(tokens) + self.place.weight)
        return logits.mT


class TransformerBlock(nn.Module):
    """Causal self-attention and a perceptron, each on normalized inputs and with a shortcut around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width)), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, HEAD)).transpose(1, 2).chunk(3, dim=1)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "convnet": convnet, "resnet18": resnet18}


def build(name: str, shape: tuple[int, int, int], classes: int, **options: Any) -> nn.Module:
    """Build a network by name, for images of shape ``(channels, height, width)``, with the options of its function.

    >>> build("mlp", (1, 8, 8), 10, hidden=[32])
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    model = lookup(name, MODELS, "model")
    if len(shape) != 3:
        raise PerronError(f"build takes the shape (channels, height, width) of one image; got {tuple(shape)}.")
    parameters = signature(model).parameters
    optional = {key: each for key, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY}
    for key in options:
        lookup(key, optional, f"option of {name}")  # `validate` alone would let ``inputs`` and ``channels`` pass
    known = {"inputs": prod(shape), "channels": shape[0], "classes": classes}
    given = {key: value for key, value in known.items() if key in parameters} | options
    return model(**validate(options_model(model), given).model_dump())


def _convolution(channels: int, wide: int, size: int, stride: int) -> nn.Sequential:
    """Return a convolution and BatchNorm, whose shift makes a bias superfluous."""
    return nn.Sequential(nn.Conv2d(channels, wide, size, stride, size // 2, bias=False), nn.BatchNorm2d(wide))


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise PerronError(f"A network needs {name} of at least 1; got {size}.")


__dir__ = public_dir(__name__)
