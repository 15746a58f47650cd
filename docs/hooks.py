"""What mkdocs does besides (mkdocs.yml): the API under its public names.

1. `::: ri.NAME` in docs/api/*.md stands for `::: retrieval_interp.NAME`, headed `ri.NAME`.
2. Anchors are public names, `ri.NAME` and `ri.NAME.member`, not the modules that define them.

A search finds the guide and the glossary, which define words, before the pages that use them.
"""

import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^::: ri\.(\w+)$", re.M)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    defines = page.file.src_uri.startswith(("guide/", "glossary"))
    page.meta["search"] = {"boost": 2 if defines else 0.5}
    heading = "::: retrieval_interp.{0}\n    options:\n      heading: ri.{0}"
    return BLOCK.sub(lambda found: heading.format(found[1]), markdown)


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
