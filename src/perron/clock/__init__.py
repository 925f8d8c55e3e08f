"""Simulated time: how many seconds a run would take on given machines and links, and what sets them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
