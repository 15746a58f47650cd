"""What mkdocs does besides (mkdocs.yml): the API under its public names, and tables of options.

1. `::: ri.NAME` in docs/api/*.md stands for `::: retrieval_interp.NAME`, headed `ri.NAME`.
2. Anchors are public names, `ri.NAME` and `ri.NAME.member`, not the modules that define them.

3. `::: options ablate.AblateOptions` stands for a table of that command's options.

A search finds the guide and the glossary, which define words, before the pages that use them.
"""

import re
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Any

from retrieval_interp.commands.options import _add_options

BLOCK = re.compile(r"^::: ri\.(\w+)$", re.M)
OPTIONS = re.compile(r"^::: options (\w+)\.(\w+)$", re.M)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    defines = page.file.src_uri.startswith(("guide/", "glossary"))
    page.meta["search"] = {"boost": 2 if defines else 0.5}
    heading = "::: retrieval_interp.{0}\n    options:\n      heading: ri.{0}"
    markdown = BLOCK.sub(lambda block: heading.format(block[1]), markdown)
    return OPTIONS.sub(lambda block: options_table(block[1], block[2]), markdown)


def options_table(command: str, name: str) -> str:
    """The options of a command as --help has them, from the dataclass of that name."""
    parser = ArgumentParser(add_help=False)
    _add_options(parser, "", getattr(import_module(f"retrieval_interp.commands.{command}"), name))
    options: dict[str, tuple[list[str], str]] = {}
    for action in parser._actions:  # two of a switch: on and off
        names, _ = options.setdefault(action.dest, ([], str(action.help)))
        names += [f"`{word}`" for word in action.option_strings or [action.dest]]
    rows = [f"| {', '.join(names)} | {text} |" for names, text in options.values()]
    table = "\n".join(["| option | meaning |", "|---|---|", *rows])
    return table.replace("%%", "%").replace("<", "&lt;")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("api/"):
        for entry in _entries(page.toc):
            entry.id = public_name(entry.id)
        # mkdocs compares links with these.
        page.present_anchor_ids = set(map(public_name, page.present_anchor_ids))
        html = re.sub(r'(?<=id=")[^"]*', lambda found: public_name(found[0]), html)
    return html


def on_post_page(html: str, **_: Any) -> str:
    return re.sub(r'(?<=#)retrieval_interp\.[^"]*(?=")', lambda found: public_name(found[0]), html)


def on_post_build(config: Any, **_: Any) -> None:
    index = Path(config.site_dir) / "search" / "search_index.json"
    words = re.sub(r"\\\\(?:mathrm|mathbf|text)\{([^}]*)\}", r"\1", index.read_text())
    index.write_text(re.sub(r"\\\\[()\[\]]", "", words))  # marks of formulas


def public_name(inside: str) -> str:
    """Of a path such as retrieval_interp.circuits.scan.Scan.kept, as an anchor: ri.Scan.kept."""
    *modules, name = inside.split(".")
    if not modules or modules[0] != "retrieval_interp":
        return inside
    _, apart, rest = inside.partition(".mechanisms.")
    if apart and not rest.startswith("Mechanism"):
        return f"ri.mechanisms.{rest}"
    member = modules[-1][0].isupper()
    return f"ri.{modules[-1]}.{name}" if member else f"ri.{name}"


def _entries(toc: Any) -> Any:
    for entry in toc:
        yield entry
        yield from _entries(entry.children)
