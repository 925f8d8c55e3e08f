"""Sphinx: scripts/docs builds the site to build/docs/html. Nothing in it needs the network, not even the formulas."""

import sys
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from perron import play

project = "perron"
author = "The perron founders"
copyright = author  # noqa: A001
version = release = version_of("perron")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_perron",
]
exclude_patterns = ["gallery/*", "auto_gallery/*.ipynb", "**/.ipynb_checkpoints"]
suppress_warnings = ["ref.python"]  # attributes of the same name in several classes
smartquotes = False  # -- is an option, not a dash
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!perron\.).*"),  # names of other libraries: their pages are on the network
    (r"py:.*", r"perron(\.\w+){3,}"),  # states of algorithms and other names within packages
    (r"py:.*", r"perron\.(random|_\w+)\.\w+"),  # internal
]

# Pages
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "docs" / "notebooks")
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # seconds for a cell: machines may be busy
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Reference
add_module_names = False
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "FloatArray", "IntArray", "LearningRate", "Matrix", "Rate")
}
autodoc_typehints_format = "short"
autosummary_generate = False
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries_show_parents = "hide"

# Scripts that draw, run at build time
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": "/plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "show_memory": False,
    "image_srcset": ["2x"],
}

# Formulas: MathJax in one file without fonts of its own, so that it works from the disk
mathjax = Path(next(iter(find_spec("sphinx-mathjax-offline").submodule_search_locations)))  # type: ignore[union-attr,arg-type]
mathjax_path = "tex-svg-full.js"
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"fontCache": "global"}}

# Looks
html_theme = "pydata_sphinx_theme"
html_title = "perron"
html_static_path = ["_static", str(mathjax / "static" / "mathjax" / mathjax_path)]
html_extra_path = [str(extra := HERE.parent / "build" / "docs" / "extra")]
extra.mkdir(parents=True, exist_ok=True)
play.write(extra / "play.html")
html_css_files = ["perron.css"]
html_favicon = "_static/logo.svg"
html_context = {"default_mode": "auto"}  # light or dark as the reader's system
html_copy_source = False
html_show_search_summary = False  # it would be fetched, which browsers forbid for files
html_show_sourcelink = False
html_sidebars = {"why": [], "comparison": []}  # pages without others below them
html_theme_options = {
    "logo": {"text": "perron", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
