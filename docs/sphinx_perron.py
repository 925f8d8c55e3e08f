"""What Sphinx needs to know about perron: plain-text docstrings, the reference of a module, the help of the command line."""

import importlib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import switch_source_input
from sphinx.util.nodes import make_refnode

import perron

SECTIONS = re.compile(r"\s*(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?|References?|Warns):\s*$")
COMMANDS = "<!-- the help of every command -->"


def public_names(module: ModuleType) -> list[str]:
    """The names that a module offers: those in ``__all__``, or all that it defines and describes."""
    if module is perron:
        return []
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        if (inspect.isclass(value) or inspect.isroutine(value)) and inspect.getdoc(value)
    ]


def public_path(module: ModuleType, name: str) -> str:
    """How a user writes a name: ``perron.Graph`` rather than ``perron.networks.Graph``."""
    exported = name in perron.__all__ and getattr(perron, name) is getattr(module, name)
    return f"perron.{name}" if exported else f"{public_module(module)}.{name}"


def public_module(module: ModuleType) -> str:
    """How a user writes a module: ``perron.topologies`` rather than ``perron.networks.topologies``."""
    name = module.__name__.rpartition(".")[2]
    return f"perron.{name}" if name in perron.__all__ and getattr(perron, name) is module else module.__name__


def entries(module_name: str, *more: str) -> dict[str, Any]:
    """Every public name of a module, and some more, as a user writes it, with what it stands for.

    Modules are not among them: each has a place of its own in the reference.
    """
    module = importlib.import_module(module_name)
    found = {public_path(module, name): getattr(module, name) for name in [*public_names(module), *more]}
    return {path: value for path, value in found.items() if not inspect.ismodule(value)}


class Api(Directive):
    """``.. api:: perron.networks``: what the module is for, a table of its public names, and an entry for each.

    ``.. api:: perron Node`` has entries for the names that it is given, and nothing else.
    """

    required_arguments = 1
    optional_arguments = 100  # names that are not exported, but good to know

    def run(self) -> list[nodes.Node]:
        """Write the directives of autodoc that say it, and let them be read."""
        module = importlib.import_module(self.arguments[0])
        found = entries(*self.arguments)
        kinds = {path: _kind(value) for path, value in found.items()}
        lines = []
        if module is not perron:
            lines += [f".. py:module:: {public_module(module)}", "", ".. py:currentmodule:: None", ""]
            lines += [*escaped((inspect.getdoc(module) or "").splitlines()), ""]
        lines += [".. autosummary::", ""]
        lines += [f"   ~{path}" for path, kind in kinds.items() if kind != "data"]
        for path, kind in kinds.items():
            lines += ["", f".. auto{kind}:: {path}"] if kind != "data" else _data(path, found[path])
        text = StringList(lines, source=f"reference of {module.__name__}")
        node = nodes.section()
        node.document = self.state.document
        with switch_source_input(self.state, text):
            self.state.nested_parse(text, 0, node)
        return node.children


def _kind(value: object) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def _data(path: str, value: Iterable[object]) -> list[str]:
    keys = ", ".join(f"``{key}``" for key in value)
    return ["", f".. py:data:: {path}", "", f"   By name: {keys}."]


def escaped(lines: list[str]) -> list[str]:
    """A docstring of plain text as reStructuredText: formulas stay as they are written, indented ones as a block."""
    found: list[str] = []
    section, block, doctest = "", "", False
    for line in lines:
        indent = re.match(r" *", line)[0]  # type: ignore[index]
        after_blank = not found or not found[-1].strip()
        if not line.strip():
            doctest = False
        elif SECTIONS.match(line):
            section, block = indent + " ", ""
        else:
            doctest = doctest or line.lstrip().startswith(">>>")
            section = section if indent.startswith(section) else ""
            if block and not indent.startswith(block):
                block = ""
            if not block and not section and indent and after_blank and not doctest:
                block = indent
                found += ["::", ""]
        found.append(line if block or doctest or not line.strip() else _escaped_line(line))
    return found


def _escaped_line(line: str) -> str:
    bullet = re.match(r"\s*(\* )?", line)[0]  # type: ignore[index]
    parts = re.split(r"(``.*?``|`[^`]+`)", line[len(bullet) :])
    return bullet + "".join(_code(part) if part.startswith("`") else _plain(part) for part in parts)


def _code(quoted: str) -> str:
    name = quoted.strip("`")
    return f":py:obj:`~perron.{name}`" if name in perron.__all__ else f"``{name}``"


def _plain(text: str) -> str:
    text = re.sub(r"([\\*|])", r"\\\1", text)
    return re.sub(r"_(?![A-Za-z0-9])", r"\\_", text)


def read_docstring(_app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Before Napoleon reads the sections of a docstring, escape its plain text."""
    lines[:] = escaped(lines)


def read_signature(
    _app: Sphinx, _what: str, _name: str, _obj: Any, _options: Any, *said: str | None
) -> tuple[Any, ...]:
    """Call aliases of types by their names, in unions too."""
    return tuple(text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in said)


def named(path: str) -> Any:
    """The object that a name stands for, as ``perron.Decentralized``; None if there is none."""
    found: Any = perron
    for part in path.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return None
    return found


def link_alias(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement) -> nodes.Element | None:
    """Link another name of an object to its entry: ``perron.mixing.Mixing`` to that of ``perron.Mixing``."""
    target = node.get("reftarget", "")
    wanted = named(target) if target.startswith("perron.") else None
    if not (inspect.isclass(wanted) or inspect.isroutine(wanted)):
        return None
    for path, entry in env.domains.python_domain.objects.items():
        if entry.objtype != "module" and named(path) is wanted:
            here = node.get("refdoc", entry.docname)
            return make_refnode(app.builder, here, entry.docname, entry.node_id, text, path)
    return None


def help_of_commands() -> str:
    """The help of every command, as Markdown, from the command line itself."""
    import typer
    from typer.cli import get_docs_for_click

    from perron.cli.app import EXIT_CODES
    from perron.cli.main import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="perron"), name="perron")
    text = re.sub(
        r"(?:^perron .*\n)+",
        lambda lines: f"```console\n{re.sub('(?m)^', '$ ', lines[0].rstrip())}\n```\n",
        text,
        flags=re.M,
    )
    codes = "".join(f"| {code} | {told} |\n" for code, told in EXIT_CODES.items())
    head = f"| exit code | what it says |\n|---|---|\n{codes}\n"
    return head + "## " + text.split("\n## ", 1)[1]  # what comes before is the page's own to say


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the help of the commands where a page asks for it."""
    if COMMANDS in source[0]:
        source[0] = source[0].replace(COMMANDS, help_of_commands())
        for path in Path(perron.__path__[0], "cli").glob("*.py"):
            app.env.note_dependency(path, docname=docname)


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx."""
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", read_docstring, priority=100)  # Napoleon's is 500
    app.connect("autodoc-process-signature", read_signature)
    app.connect("missing-reference", link_alias)
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
