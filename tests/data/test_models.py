"""Networks by name: their sizes, what they are made of, and what is refused."""

import pytest
import torch
from torch import nn

from perron.data.models import GPT, MODELS, BasicBlock, build, convnet, mlp, resnet18
from perron.errors import PerronError

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


def some(model, kind):
    return [module for module in model.modules() if isinstance(module, kind)]


def test_the_perceptron_of_the_paper():
    model = build("mlp", (1, 28, 28), 10)
    assert size(model) == size(mlp(784, 10)) == 1_863_690
    assert [type(layer) for layer in model] == [nn.Flatten, *[nn.Linear, nn.ReLU] * 2, nn.Linear]


def test_the_perceptron_by_hand():
    torch.manual_seed(0)
    model, images = mlp(12, 3, hidden=(5,)), torch.randn(4, 3, 2, 2)
    first, last = some(model, nn.Linear)
    by_hand = (images.view(4, 12) @ first.weight.T + first.bias).clamp(min=0) @ last.weight.T + last.bias
    torch.testing.assert_close(model(images), by_hand)
    assert size(mlp(12, 3, hidden=())) == 12 * 3 + 3  # a linear classifier


def test_resnet18_of_cifar():
    model = resnet18(3, 10)
    assert size(model) == 11_173_962
    assert len(some(model, nn.Conv2d)) == 1 + 16 + 3  # the stem, two in each block, three projections
    assert len(some(model, nn.BatchNorm2d)) == len(some(model, nn.Conv2d))
    assert all(layer.bias is None for layer in some(model, nn.Conv2d))
    blocks = some(model, BasicBlock)
    assert [block.second[0].out_channels for block in blocks] == [64, 64, 128, 128, 256, 256, 512, 512]
    assert [block.first[0].stride[0] for block in blocks] == [1, 1, 2, 1, 2, 1, 2, 1]
    projecting = [number for number, block in enumerate(blocks) if not isinstance(block.around, nn.Identity)]
    assert projecting == [2, 4, 6]


def test_resnet18_goes_from_32_to_4_pixels():
    torch.manual_seed(0)
    seen, stems, model = [], [], resnet18(3, 10, width=2).eval()
    for block in some(model, BasicBlock):
        block.register_forward_hook(lambda _module, _inputs, output: seen.append(tuple(output.shape[1:])))
    some(model, BasicBlock)[0].register_forward_pre_hook(lambda _module, inputs: stems.append(inputs[0]))
    model(torch.randn(1, 3, 32, 32))
    assert stems[0].min() == 0 < stems[0].max()  # rectified
    assert seen[1::2] == [(2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)]


def test_width_scales_resnet18():
    narrow = resnet18(3, 10, width=8)
    widths = {layer.out_channels for layer in some(narrow, nn.Conv2d)}
    assert widths == {8, 16, 32, 64}
    assert size(resnet18(3, 10)) / 64 == pytest.approx(
        size(narrow), rel=0.05
    )  # weights grow as the square of the width


def test_a_block_is_what_it_says():
    torch.manual_seed(0)
    same, changes, x = BasicBlock(4, 4).eval(), BasicBlock(4, 6, stride=2).eval(), torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(same(x), (same.second(same.first(x).clamp(min=0)) + x).clamp(min=0))
    around = changes.around(x)
    assert around.shape == (2, 6, 3, 3)
    torch.testing.assert_close(changes(x), (changes.second(changes.first(x).clamp(min=0)) + around).clamp(min=0))


def test_the_small_network_has_no_batchnorm():
    model = convnet(1, 10)
    assert not some(model, nn.BatchNorm2d)
    assert size(model) == (9 * 16 + 16) + (16 * 9 * 32 + 32) + (32 * 16 * 10 + 10)
    assert size(build("convnet", (1, 28, 28), 10)) == size(build("convnet", (1, 8, 8), 10))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_network_learns_from_every_shape(name, shape):
    torch.manual_seed(0)
    model = build(name, shape, 7, **({"hidden": (8,)} if name == "mlp" else {"width": 4}))
    scores = model(torch.randn(5, *shape))
    assert scores.shape == (5, 7)
    scores.logsumexp(1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_the_seed_decides_the_weights():
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(build("convnet", (1, 8, 8), 10)[0].weight)
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("resnet81", (3, 32, 32), 10), r"no model 'resnet81'; did you mean 'resnet18'\? .* mlp, convnet"),
        (lambda: build("mlp", (1, 8, 8), 10, width=8), r"no option of mlp 'width'.*There are: hidden\."),
        (lambda: build("resnet18", (3, 8, 8), 10, widht=8), r"did you mean 'width'\? There are: width\."),
        (lambda: build("resnet18", (3, 8, 8), 10, channels=1), r"no option of resnet18 'channels'"),
        (lambda: build("convnet", (1, 8, 8), 10, width="wide"), "width: .*integer.*'wide'"),
        (lambda: build("convnet", (8, 8), 10), r"\(channels, height, width\).*got \(8, 8\)"),
        (lambda: build("convnet", (1, 8, 8), 10, width=0), "width of at least 1; got 0"),
        (lambda: mlp(64, 10, hidden=(32, 0)), "hidden of at least 1; got 0"),
        (lambda: resnet18(3, 0), "classes of at least 1; got 0"),
    ],
)
def test_refused(call, message):
    with pytest.raises(PerronError, match=message):
        call()


def test_a_gpt_is_torchs_transformer():
    """With the weights of torch's own encoder layers, normalized first, and a causal mask."""
    torch.manual_seed(0)
    model, tokens = GPT(11, context=7, width=64, depth=2).double(), torch.randint(11, (3, 7))
    options = {"activation": "gelu", "dropout": 0.0, "batch_first": True, "norm_first": True, "dtype": torch.float64}
    hidden = model.embed(tokens) + model.place.weight
    *blocks, norm, last = model.rest
    for block in blocks:
        layer = nn.TransformerEncoderLayer(64, 2, 256, **options)
        first, qkv = block.qkv
        second, wide, _, narrow = block.mlp
        pairs = [(layer.norm1, first), (layer.norm2, second), (layer.linear1, wide), (layer.linear2, narrow)]
        for own, given in [*pairs, (layer.self_attn.out_proj, block.mix)]:
            own.load_state_dict(given.state_dict())
        layer.self_attn.load_state_dict(
            layer.self_attn.state_dict() | {"in_proj_weight": qkv.weight, "in_proj_bias": qkv.bias}
        )
        hidden = layer(hidden, src_mask=nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64))
    torch.testing.assert_close(model(tokens), last(norm(hidden)).mT, rtol=1e-12, atol=1e-12)


def test_a_gpt_sees_no_later_token():
    torch.manual_seed(0)
    model, tokens = GPT(11, context=6, width=32, depth=1), torch.randint(11, (1, 6))
    changed = tokens.clone()
    changed[0, 4] = (tokens[0, 4] + 1) % 11
    same = (model(tokens) == model(changed)).all(1)[0]
    assert same.tolist() == [True] * 4 + [False] * 2
    with pytest.raises(PerronError, match="a multiple of 32, the size of a head; got 48"):
        GPT(11, width=48)
