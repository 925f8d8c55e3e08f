"""One process per node, on torch.distributed: nodes, the optimizer, checkpoints, elastic membership."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
