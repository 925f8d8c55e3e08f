"""Weights, and digraphs, chosen for a purpose: fast mixing, fast convergence, little noise, a slow uplink, fast links."""

from perron.design.by_rates import Chosen, choose_graph
from perron.design.designer import GOALS, Design, Measured, design

__all__ = ["GOALS", "Chosen", "Design", "Measured", "choose_graph", "design"]
