"""Augmentation of batches of images. The random numbers are an argument, so that `perron.random` can reproduce them.

Crop and flip only move pixels, of any range. Rotation, jitter and grayscale compute in floating point: they map floats in
[0, 1] to such, or take uint8 and round back to it. So augment first and normalize afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import radians

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from perron._registry import public_dir
from perron.errors import PerronError

RED, GREEN, BLUE = 0.299, 0.587, 0.114  # shares of the luminance, ITU-R BT.601, as in torchvision and PIL


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of images that keep their labels valid, applied in the order of the options.

    Args:
        crop: the image is padded with this many pixels of zeros, and a window of its own size is cut at a random place.
        flip: half of the images are mirrored, left to right.
        rotation: by an angle uniform in +- this many degrees, about the center; bilinear, with zeros from outside.
        jitter: brightness, then contrast, then saturation times a factor uniform in [1 - jitter, 1 + jitter].
        grayscale: the probability that an image loses its colors.

    Saturation and grayscale do not change images with one channel. If all random numbers are 1/2, an image stays the same
    (unless grayscale is above 1/2).

    >>> from perron.random import Keyed
    >>> augment, images = Augmentation(crop=4), torch.zeros(32, 3, 32, 32, dtype=torch.uint8)
    >>> uniform = Keyed(0, node=3).uniform(draw=7, size=32 * augment.numbers).view(32, -1)
    >>> augment(images, uniform).shape
    torch.Size([32, 3, 32, 32])
    """

    crop: int = 4
    flip: bool = True
    rotation: float = 0
    jitter: float = 0
    grayscale: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.crop, int) or self.crop < 0:
            raise PerronError(f"Augmentation needs crop as a whole number of pixels, at least 0; got {self.crop!r}.")
        if not isinstance(self.flip, bool):
            raise PerronError(f"Augmentation needs flip as True (half of the images) or False; got {self.flip!r}.")
        for name, most in (("rotation", 180), ("jitter", 1), ("grayscale", 1)):
            if not 0 <= (value := getattr(self, name)) <= most:
                raise PerronError(f"Augmentation needs 0 <= {name} <= {most}; got {value}.")

    @property
    def numbers(self) -> int:
        """How many uniform numbers an image needs: 2 for crop, 1 for flip, 1 for rotation, 3 for jitter, 1 for grayscale."""
        return 2 * (self.crop > 0) + self.flip + (self.rotation > 0) + 3 * (self.jitter > 0) + (self.grayscale > 0)

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return images ``(batch, channels, height, width)``, changed by random numbers ``uniform`` ``(batch, numbers)``."""
        self._check(images, uniform)
        columns = iter(uniform.unbind(1))
        if self.crop or self.flip:
            images = self._moved(images, columns)
        if not (self.rotation or self.jitter or self.grayscale):
            return images
        whole = images.dtype == torch.uint8
        result = images.float().div_(255) if whole else images
        if self.rotation:
            result = _rotated(result, (2 * next(columns) - 1) * radians(self.rotation))
        if self.jitter:
            factors = [_each(1 + self.jitter * (2 * next(columns) - 1), result) for _ in range(3)]
            result = (result * factors[0]).clamp_(0, 1)
            gray = _luminance(result.mean((2, 3), keepdim=True))  # the mean of the luminance, as that is linear
            result = gray.lerp(result, factors[1]).clamp_(0, 1)
            result = _luminance(result).lerp(result, factors[2]).clamp_(0, 1)
        if self.grayscale:
            kept = _each(next(columns) >= self.grayscale, result)
            result = _luminance(result).lerp(result, kept)  # exact at 0 and at 1, and faster than `where`
        return result.mul_(255).round_().to(torch.uint8) if whole else result

    def _check(self, images: Tensor, uniform: Tensor) -> None:
        if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise PerronError(
                "Augmentation takes images (batch, channels, height, width) as uint8 or floats; "
                f"got {tuple(images.shape)} as {images.dtype}."
            )
        if uniform.shape != (size := (len(images), self.numbers)):
            raise PerronError(f"These images need uniform (batch, numbers) = {size}; got {tuple(uniform.shape)}.")
        if (self.jitter or self.grayscale) and images.shape[1] not in (1, 3):
            raise PerronError(f"Jitter and grayscale need 1 channel or 3 (RGB); got {images.shape[1]}.")
        if (self.rotation or self.jitter or self.grayscale) and images.is_floating_point():
            low, high = images.aminmax()
            if not 0 <= low <= high <= 1:
                raise PerronError(
                    "Rotation, jitter and grayscale take floats in [0, 1]; "
                    f"got {low:.3g} to {high:.3g}. Normalize after augmenting, not before."
                )

    def _moved(self, images: Tensor, columns: Iterator[Tensor]) -> Tensor:
        """Crop, then flip, by one index into the pixels of the padded image, the same for all channels.

        One `gather` takes half the time of windows (`unfold`), a fifth of an index by rows and columns.
        """
        batch, channels, height, width = images.shape
        rows, places = (torch.arange(side, device=images.device).expand(batch, -1) for side in (height, width))
        most = 2 * self.crop  # the last place of the window
        top, left = ((next(columns) * (most + 1)).long().clamp_(max=most)[:, None] if most else 0 for _ in range(2))
        if self.flip:
            places = torch.where(next(columns)[:, None] < 0.5, width - 1 - places, places)
        index = ((rows + top) * (width + most))[:, :, None] + (places + left)[:, None, :]  # (batch, height, width)
        padded = pad(images.contiguous(), [self.crop] * 4).view(batch, channels, -1)
        return padded.gather(2, index.view(batch, 1, -1).expand(-1, channels, -1)).view(images.shape)


def _each(numbers: Tensor, images: Tensor) -> Tensor:
    """Return one number per image, in a shape that broadcasts over its pixels."""
    return numbers.to(images.dtype)[:, None, None, None]


def _rotated(images: Tensor, angle: Tensor) -> Tensor:
    """Rotate each image counter-clockwise by its angle (rows count downwards)."""
    height, width = images.shape[2:]
    cosine, sine = (part.to(images.dtype)[:, None, None] for part in (angle.cos(), angle.sin()))
    y, x = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (height, width))  # from the center
    across = (cosine * x - sine * y[:, None]) * (2 / width)  # where each pixel comes from: -1 and 1 are the borders
    down = (sine * x + cosine * y[:, None]) * (2 / height)
    grid = torch.stack([across, down], -1).to(images.dtype)
    return grid_sample(images, grid, align_corners=False).clamp_(0, 1)  # rounded weights may add up to more than 1


def _luminance(images: Tensor) -> Tensor:
    """Return the brightness of each pixel, as one channel."""
    if images.shape[1] == 1:
        return images
    return RED * images[:, :1] + GREEN * images[:, 1:2] + BLUE * images[:, 2:]


# The code of the paper's authors rotates, jitters colors and makes some images gray; how strongly is our choice.
PRESETS: dict[str, Augmentation | None] = {
    "none": None,
    "standard": Augmentation(),
    "authors": Augmentation(rotation=15, jitter=0.2, grayscale=0.1),
}

__dir__ = public_dir(__name__)
