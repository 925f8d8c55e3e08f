"""Weights, and digraphs, chosen for a purpose: fast mixing, fast convergence, little noise, a slow uplink, fast links."""

from perron.design.designs import GOALS, Design, Measured, design
from perron.design.links import Chosen, choose_graph

__all__ = ["GOALS", "Chosen", "Design", "Measured", "choose_graph", "design"]
