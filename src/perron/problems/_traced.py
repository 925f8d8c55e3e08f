"""Functions made by torch.func, recorded as a list of plain operators and replayed without torch.func.

torch.func interprets every operator several times, once per transformation, which costs more than the operators themselves where
tensors are small. The operators depend on shapes only, so they are recorded at the first call (`make_fx`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

Function = Callable[..., Tensor]

# Operators whose result depends on the shape of their first argument only.
SHAPED = ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
# Operators that Python calls faster by another name; the arguments are the same.
NAMED = (
    "add", "sub", "mul", "div", "neg", "bmm", "mm", "exp", "log", "sigmoid", "tanh",
    "permute", "transpose", "unsqueeze", "squeeze",
)  # fmt: skip
ROUNDING = 1e3  # of a different order of sums: this times the precision of numbers, relative to the largest


class Traced:
    """A function of tensors, recorded at the first call with tensors of each shape and precision.

    A record has to return what the function does, at two points. Where there is none that does, the function is called as it is;
    so it is while torch differentiates it. The first argument is the point; the others are data.

    Args:
        function: of tensors; it depends on its arguments only.
        faster: other forms of the function, which are recorded in its place if they work, in this order.
    """

    def __init__(self, function: Function, *faster: Function) -> None:
        self.function, self.forms = function, faster or (function,)
        self._recorded: dict[Hashable, Function] = {}

    def __call__(self, x: Tensor, *data: Tensor) -> Tensor:
        if x.requires_grad or torch._C._functorch.maybe_current_level() is not None:
            return self.function(x, *data)
        x = x.contiguous()
        key = (x.shape, x.dtype, x.device, *[(part.shape, part.dtype) for part in data])
        run = self._recorded.get(key)
        if run is None:
            found = (_recorded(form, self.function, x, data) for form in self.forms)
            run = self._recorded[key] = next(filter(None, found), self.function)
        return run(x, *data)


def _recorded(form: Function, function: Function, x: Tensor, data: tuple[Tensor, ...]) -> Function | None:
    """Return a form of a function, recorded; None if that is not possible, or has other values than the function."""
    try:
        module = make_fx(functionalize(form))(x, *data)  # without operators in place
        _simplify(module.graph, module)
        module.recompile()
        other = (x + 1) / 2 + torch.linspace(0, 1, x.shape[-1], dtype=x.dtype, device=x.device)
        for point in (x, other):
            expected, found = function(point, *data), module.forward(point, *data)
            size = torch.nan_to_num(expected).abs().max()
            rounding = float(ROUNDING * torch.finfo(x.dtype).eps * size)
            torch.testing.assert_close(found, expected, rtol=0, atol=rounding, equal_nan=True, check_stride=False)
    except Exception:  # whatever it is, the function itself will either work or say why not
        return None
    return module.forward


def _simplify(graph: Graph, module: GraphModule) -> None:
    """Leave out what changes nothing, and compute what does not depend on the arguments."""
    operators = [node for node in graph.nodes if node.op == "call_function"]
    if any(node.target._schema.is_mutable for node in operators):
        raise ValueError("the function changes its arguments")
    constants: dict[Node, Tensor] = {}
    for node in operators:
        if _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
        elif node.target.overloadpacket.__name__ in SHAPED:
            source = node.args[0].meta["val"]
            like = torch.empty(source.shape, dtype=source.dtype, device=source.device)
            constants[node] = node.target(like, *node.args[1:], **node.kwargs)
        elif node.all_input_nodes and all(one in constants for one in node.all_input_nodes):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), constants.__getitem__)
            constants[node] = node.target(*args, **kwargs)
    for number, (node, value) in enumerate(constants.items()):
        module.register_buffer(name := f"constant_{number}", value)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.op == "call_function" and (name := node.target.overloadpacket.__name__) in NAMED:
            node.target = getattr(torch, name)


def _changes_nothing(node: Node) -> bool:
    """Whether an operator returns its first argument, in the same shape and order."""
    target: Any = node.target
    if not (target.is_view or target is torch.ops.aten._unsafe_view.default) or not isinstance(node.args[0], Node):
        return False
    new, old = node.meta["val"], node.args[0].meta["val"]
    places = [(value.shape, value.stride(), value.storage_offset()) for value in (new, old)] if _is_tensor(new) else []
    return bool(places) and places[0] == places[1] and new.dtype == old.dtype


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
