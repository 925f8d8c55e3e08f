"""Weights and digraphs for a goal: fast mixing, fast convergence, little noise, a slow uplink, fast links."""

from perron._registry import public_dir
from perron.design.by_rates import ChosenGraph, choose_graph
from perron.design.designer import design
from perron.design.records import GOALS, Design, Measurement

__all__ = ["GOALS", "ChosenGraph", "Design", "Measurement", "choose_graph", "design"]

__dir__ = public_dir(__name__)
