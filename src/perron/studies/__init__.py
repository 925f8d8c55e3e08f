"""Parameter sweeps: the study file, its runs, the table of results, and what follows from it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
