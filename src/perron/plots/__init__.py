"""Figures: graphs, curves and tables, written as PNG, PDF or SVG by the suffix of the path."""

from perron._registry import public_dir
from perron.networks.layout import layout, link_bend, node_radius, split_links
from perron.plots.base import BLUE, COLORS, FORMATS, GREY, INK, PALE, Picture, html_table, save, to_svg
from perron.plots.charts import PAGE_COLUMNS, Chart, HeatMaps, Line, Panel, curves
from perron.plots.graphs import Drawing, draw

__all__ = [
    "BLUE", "COLORS", "FORMATS", "GREY", "INK", "PAGE_COLUMNS", "PALE", "Chart", "Drawing", "HeatMaps", "Line", "Panel",
    "Picture", "curves", "draw", "html_table", "layout", "link_bend", "node_radius", "save", "split_links", "to_svg",
]  # fmt: skip

__dir__ = public_dir(__name__)
