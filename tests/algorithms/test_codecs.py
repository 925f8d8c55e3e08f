"""Codecs of messages: what is read is what was written, errors are bounded, and what is not a message is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perron.algorithms.codecs import BLOCK, CODECS, TRAILER, codec_of, wire_sizes
from perron.errors import PerronError

LENGTHS = (1, 2, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7)
ERRORS = {
    "bf16": 2**-8,
    "int8": 0.5 / 127 * (1 + 2**-7),
    "int4": 0.5 / 7 * (1 + 2**-7),
}  # a scale is rounded up to 8 bits


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", LENGTHS)
@pytest.mark.parametrize("wire", CODECS)
def test_what_is_read_is_what_was_written(wire, dim, dtype):
    codec, x = codec_of(wire), numbers(dim, dtype=dtype)
    sent = codec.encode(x)
    assert sent.message.dtype == torch.uint8
    assert sent.message.numel() == codec.nbytes(dim) == sent.nbytes == wire_sizes(wire, dim).vector
    assert torch.equal(codec.read(sent.message, dim, dtype), sent.values)
    misplaced = torch.cat([torch.zeros(1, dtype=torch.uint8), sent.message])[1:]
    assert torch.equal(codec.read(misplaced, dim, dtype), sent.values)


@pytest.mark.parametrize("wire", CODECS)
def test_stacked_vectors_are_quantized_one_by_one(wire):
    x = numbers(3, 4, 2 * BLOCK + 5)
    stacked = codec_of(wire).encode(x).values
    assert all(torch.equal(stacked[t, i], codec_of(wire).encode(x[t, i]).values) for t in range(3) for i in range(4))


@given(st.integers(0, 2**32 - 1), st.sampled_from(LENGTHS), st.floats(-30, 30), st.sampled_from(sorted(CODECS)))
def test_errors_are_bounded_in_each_block(seed, dim, magnitude, wire):
    x = numbers(dim, seed=seed) * 10**magnitude
    off = (codec_of(wire).encode(x).values - x).abs()
    for part, whole in zip(off.split(BLOCK), x.split(BLOCK), strict=True):
        assert part.max() <= ERRORS[wire] * whole.abs().max()


@pytest.mark.parametrize("wire", CODECS)
def test_zero_tiny_and_infinite_numbers(wire):
    codec = codec_of(wire)
    assert not codec.encode(torch.zeros(300)).values.any()
    assert codec.encode(torch.full((300,), 1e-300, dtype=torch.float64)).values.abs().max() <= 1e-299
    for value in (torch.inf, -torch.inf, torch.nan):
        x = torch.ones(300)
        x[7] = value
        assert not codec.read(codec.encode(x).message, 300, torch.float32).isfinite().all()


def test_half_a_byte_is_half_a_byte():
    scales = 2 * -(-1000 // BLOCK)
    assert [CODECS[wire].nbytes(1000) - TRAILER for wire in ("bf16", "int8", "int4")] == [
        2000,
        1000 + scales,
        500 + scales,
    ]


@pytest.mark.parametrize("wire", CODECS)
def test_what_is_no_message_of_this_kind_is_refused(wire):
    codec, others = codec_of(wire), [name for name in CODECS if name != wire]
    message = codec.encode(numbers(600)).message
    cut, changed, other = message[:-1], message.clone(), codec_of(others[0]).encode(numbers(600)).message
    changed[-1] += 7
    for wrong in (cut, changed, other, codec.encode(numbers(601)).message, torch.cat([message, message])):
        with pytest.raises(PerronError, match=f"600 numbers as {wire}"):
            codec.read(wrong, 600, torch.float64)


@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_scales_and_codes_out_of_range_are_refused(wire):
    codec = codec_of(wire)
    message = codec.encode(numbers(600)).message
    negative = message.clone()
    negative[-TRAILER - 1] |= 0x80  # the sign of the last scale
    outside = message.clone()
    outside[3] = 0x80 if wire == "int8" else 0x00  # -128, or twice -8
    for wrong in (negative, outside):
        with pytest.raises(PerronError, match="out of range"):
            codec.read(wrong, 600, torch.float64)


def test_an_unknown_wire_names_the_others():
    with pytest.raises(PerronError, match="There are: bf16, int8, int4"):
        codec_of("int2")
