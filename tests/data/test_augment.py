"""Augmentation: each part against a slow twin for one image, and what must come out for certain numbers."""

import itertools
import math

import pytest
import torch

from perron.data.augment import PRESETS, Augmentation
from perron.errors import PerronError
from perron.random import Keyed

NOTHING = {"crop": 0, "flip": False}


def some_images(batch=6, channels=3, height=9, width=7, dtype=torch.float64, seed=0):
    images = torch.rand(
        batch, channels, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.double
    )
    return (images * 255).round().to(torch.uint8) if dtype == torch.uint8 else images.to(dtype)


def some_numbers(augment, batch=6, seed=1):
    return Keyed(seed).uniform(0, batch * augment.numbers).view(batch, -1)


def turned_around(image):
    """What the mirror shows."""
    return torch.stack([image[:, :, column] for column in reversed(range(image.shape[2]))], 2)


def window(image, top, left):
    """The window whose corner is at (top, left) of the image, which is black outside."""
    result, (height, width) = torch.zeros_like(image), image.shape[1:]
    for y, x in itertools.product(range(height), range(width)):
        if 0 <= y + top < height and 0 <= x + left < width:
            result[:, y, x] = image[:, y + top, x + left]
    return result


def rotated(image, degrees):
    """Every pixel from where it was before the turn: the mean of the four pixels around, the nearer the more."""
    result, (height, width), angle = torch.zeros_like(image), image.shape[1:], math.radians(degrees)
    for y, x in itertools.product(range(height), range(width)):
        right, up = x - (width - 1) / 2, (height - 1) / 2 - y
        was_right = math.cos(angle) * right + math.sin(angle) * up
        was_up = -math.sin(angle) * right + math.cos(angle) * up
        column, row = was_right + (width - 1) / 2, (height - 1) / 2 - was_up
        for r, c in itertools.product(
            (math.floor(row), math.floor(row) + 1), (math.floor(column), math.floor(column) + 1)
        ):
            if 0 <= r < height and 0 <= c < width:
                result[:, y, x] += (1 - abs(row - r)) * (1 - abs(column - c)) * image[:, r, c]
    return result


def luminance(image):
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2] if len(image) == 3 else image[0]


def jittered(image, brightness, contrast, saturation):
    image = (brightness * image).clamp(0, 1)
    image = (contrast * image + (1 - contrast) * luminance(image).mean()).clamp(0, 1)
    return (saturation * image + (1 - saturation) * luminance(image)).clamp(0, 1)


def twin(augment, image, numbers):
    """What an augmentation does to one image."""
    numbers = iter(numbers.tolist())
    if augment.crop:
        top, left = (int(next(numbers) * (2 * augment.crop + 1)) - augment.crop for _ in range(2))
        image = window(image, top, left)
    if augment.flip and next(numbers) < 0.5:
        image = turned_around(image)
    if augment.rotation:
        image = rotated(image, augment.rotation * (2 * next(numbers) - 1))
    if augment.jitter:
        image = jittered(image, *(1 + augment.jitter * (2 * next(numbers) - 1) for _ in range(3)))
    if augment.grayscale and next(numbers) < augment.grayscale:
        image = luminance(image).expand_as(image)
    return image


EVERY = {
    "crop": Augmentation(crop=2, flip=False),
    "flip": Augmentation(crop=0),
    "crop and flip": Augmentation(crop=3),
    "rotation": Augmentation(**NOTHING, rotation=70),
    "jitter": Augmentation(**NOTHING, jitter=0.8),
    "grayscale": Augmentation(**NOTHING, grayscale=0.5),
    "authors": PRESETS["authors"],
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augment", EVERY.values(), ids=EVERY)
def test_as_the_slow_twin(augment, channels, dtype):
    images, numbers = some_images(channels=channels, dtype=dtype), some_numbers(augment)
    assert numbers.shape == (6, augment.numbers)
    before = images.clone()
    result = augment(images, numbers)
    assert torch.equal(images, before)  # what was given is left alone
    assert (result.dtype, result.shape) == (dtype, images.shape)
    exact = images.double() / (255 if dtype == torch.uint8 else 1)
    expected = torch.stack([twin(augment, *each) for each in zip(exact, numbers, strict=True)])
    if dtype == torch.uint8:
        assert (result.double() - expected * 255).abs().max() <= 0.5 + 1e-3  # rounded to the nearest
    else:
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)
    gray = channels == 1 and augment == EVERY["grayscale"]
    assert torch.equal(result, images) == gray  # these numbers change something


def test_numbers():
    assert {name: augment.numbers for name, augment in EVERY.items()} == {
        "crop": 2, "flip": 1, "crop and flip": 3, "rotation": 1, "jitter": 3, "grayscale": 1, "authors": 8,
    }  # fmt: skip
    nothing = Augmentation(**NOTHING)
    assert nothing.numbers == 0
    assert torch.equal(nothing(some_images(), torch.rand(6, 0)), some_images())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_halves_change_nothing(dtype):
    augment = Augmentation(crop=3, rotation=30, jitter=1, grayscale=0.5)
    images = some_images(dtype=dtype)
    torch.testing.assert_close(augment(images, torch.full((6, 8), 0.5)), images, rtol=0, atol=1e-6)
    still = Augmentation(crop=3, jitter=1, grayscale=0.5)
    assert torch.equal(still(images, torch.full((6, 7), 0.5)), images)  # to the last bit


def test_flipped_twice_is_not_flipped():
    flip, images, numbers = (
        Augmentation(crop=0),
        some_images(),
        torch.tensor([[0.0], [0.49], [0.5], [0.9], [0.1], [1.0]]),
    )
    once = flip(images, numbers)
    mirrored = [not torch.equal(*each) for each in zip(once, images, strict=True)]
    assert mirrored == [True, True, False, False, True, False]
    assert torch.equal(flip(once, numbers), images)


def test_crop_reaches_every_place_equally_often():
    """Of numbers on a regular grid each of the 5 x 5 places takes the same share, and a lone pixel shows which."""
    steps = torch.arange(15) / 15 + 1 / 30
    numbers = torch.cartesian_prod(steps, steps)
    images = torch.zeros(len(numbers), 1, 7, 7, dtype=torch.uint8)
    images[:, :, 3, 3] = 1
    result = Augmentation(crop=2, flip=False)(images, numbers)
    counts = result[:, 0].sum(0)
    assert (counts[1:6, 1:6] == 9).all()
    assert counts.sum() == len(numbers)


def test_crop_and_flip_of_keyed_numbers_are_uniform():
    """Chi-square over 9 x 9 places, mirrored or not: 161 degrees of freedom, which exceed 240 once in 18,000 seeds."""
    augment, count = Augmentation(crop=4), 40_000
    images = torch.zeros(count, 1, 11, 12, dtype=torch.uint8)
    images[:, :, 5, 5:7] = torch.tensor([1, 2], dtype=torch.uint8)  # two pixels, whose order shows the mirror
    result = augment(images, some_numbers(augment, count)).view(count, -1)
    place, mirrored = (result == 1).int().argmax(1), (result == 1).int().argmax(1) > (result == 2).int().argmax(1)
    counts = torch.unique(torch.stack([place, mirrored.long()]), dim=1, return_counts=True)[1].double()
    assert len(counts) == 2 * 81
    mean = count / len(counts)
    assert 90 < ((counts - mean) ** 2 / mean).sum() < 240


def test_numbers_at_the_ends_stay_within():
    images = some_images()
    for end, shift in ((0.0, -2), (1.0, 2)):  # 1 is not among keyed numbers, but rounding to float32 makes it
        result = Augmentation(crop=2, flip=False)(images, torch.full((6, 2), end))
        assert torch.equal(result, torch.stack([window(image, shift, shift) for image in images]))


@pytest.mark.parametrize(("number", "turns"), [(1.0, 1), (0.0, -1)])
def test_a_quarter_turn_is_exact(number, turns):
    images = some_images(height=8, width=8)
    result = Augmentation(**NOTHING, rotation=90)(images, torch.full((6, 1), number, dtype=torch.double))
    torch.testing.assert_close(result, torch.rot90(images, turns, (2, 3)))


def test_rotation_brings_zeros_into_the_corners():
    result = Augmentation(**NOTHING, rotation=45)(torch.ones(1, 3, 32, 32), torch.ones(1, 1))
    assert result[0, :, 0, 0].max() == 0
    assert result[0, :, 8:24, 8:24].min() > 0.9999


def test_rotation_stays_within_its_range():
    """Four weights that were rounded may add up to more than 1, and do for some of these angles."""
    augment = Augmentation(**NOTHING, rotation=45)
    assert augment(torch.ones(500, 1, 7, 9), some_numbers(augment, 500)).max() == 1


def test_grayscale_is_the_luminance():
    images = some_images()
    result = Augmentation(**NOTHING, grayscale=1)(images, torch.rand(6, 1))
    assert (result == result[:, :1]).all()
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.double)
    torch.testing.assert_close(result[:, 0], torch.einsum("bchw,c->bhw", images, weights))


def test_grayscale_has_its_probability():
    augment = Augmentation(**NOTHING, grayscale=0.1)
    images, numbers = some_images(2000, 3, 2, 2), some_numbers(augment, 2000)
    result = augment(images, numbers)
    gray = (result == result[:, :1]).flatten(1).all(1)
    assert torch.equal(gray, numbers[:, 0] < 0.1)
    assert gray.double().mean() == pytest.approx(0.1, abs=0.03)


def test_brightness_contrast_saturation_each_alone():
    jitter, images = Augmentation(**NOTHING, jitter=0.4), some_images() / 2 + 0.2  # no clamping
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.double)[:, None, None]

    def at(*numbers):
        return jitter(images, torch.tensor(numbers, dtype=torch.double).expand(6, 3))

    def contrast(pictures):
        return (pictures * weights).sum(1).std((1, 2))

    def saturation(pictures):
        return (pictures - (pictures * weights).sum(1, keepdim=True)).square().sum((1, 2, 3)).sqrt()

    torch.testing.assert_close(at(1, 0.5, 0.5), 1.4 * images)
    torch.testing.assert_close(contrast(at(0.5, 0, 0.5)), 0.6 * contrast(images))
    torch.testing.assert_close(at(0.5, 0.5, 0).mul(weights).sum(1), images.mul(weights).sum(1))
    torch.testing.assert_close(saturation(at(0.5, 0.5, 0)), 0.6 * saturation(images))
    assert at(1, 1, 1).max() == 1  # clamped, not wrapped


def test_one_channel_has_no_colours():
    images = some_images(channels=1)
    saturation = torch.tensor([0.5, 0.5, 1.0]).expand(6, 3)
    assert torch.equal(Augmentation(**NOTHING, jitter=0.5)(images, saturation), images)
    assert torch.equal(Augmentation(**NOTHING, grayscale=1)(images, torch.zeros(6, 1)), images)


def test_only_its_own_numbers_decide_about_an_image():
    augment, images = PRESETS["authors"], some_images(dtype=torch.float32)
    numbers = some_numbers(augment)
    result = augment(images, numbers)
    assert torch.equal(result, augment(images, numbers))
    order = torch.tensor([3, 0, 5])
    torch.testing.assert_close(augment(images[order], numbers[order]), result[order])


@pytest.mark.parametrize("augment", EVERY.values(), ids=EVERY)
def test_memory_layout_does_not_matter(augment):
    images, numbers = some_images(dtype=torch.float32), some_numbers(augment)
    by_columns = images.mT.contiguous().mT
    for elsewhere in (images.contiguous(memory_format=torch.channels_last), by_columns):
        assert not elsewhere.is_contiguous()
        torch.testing.assert_close(augment(elsewhere, numbers), augment(images, numbers))


def test_presets():
    assert PRESETS["none"] is None
    assert PRESETS["standard"] == Augmentation(crop=4, flip=True)
    assert PRESETS["authors"] == Augmentation(crop=4, flip=True, rotation=15, jitter=0.2, grayscale=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": -1}, "crop as a whole number of pixels, at least 0; got -1"),
        ({"crop": 1.5}, "got 1.5"),
        ({"flip": 0.5}, "flip as True .* or False; got 0.5"),
        ({"rotation": -5}, "0 <= rotation <= 180; got -5"),
        ({"jitter": 1.1}, "0 <= jitter <= 1; got 1.1"),
        ({"grayscale": float("nan")}, "0 <= grayscale <= 1; got nan"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(PerronError, match=message):
        Augmentation(**options)


@pytest.mark.parametrize(
    ("augment", "images", "width", "message"),
    [
        (Augmentation(), some_images()[0], 3, r"\(batch, channels, height, width\).*got \(3, 9, 7\)"),
        (Augmentation(), some_images().long(), 3, "uint8 or floats; got .* torch.int64"),
        (Augmentation(), some_images(), 4, r"\(batch, numbers\) = \(6, 3\); got \(6, 4\)"),
        (Augmentation(**NOTHING, jitter=0.1), some_images(channels=2), 3, "1 channel or 3 .*; got 2"),
        (Augmentation(**NOTHING, jitter=0.1), some_images() - 0.5, 3, r"\[0, 1\]; got -0.* Normalize after"),
    ],
)
def test_calls_are_checked(augment, images, width, message):
    with pytest.raises(PerronError, match=message):
        augment(images, torch.full((len(images), width), 0.5))
