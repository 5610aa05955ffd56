"""One self-contained page of a run's executed notebooks: no script, no font and no image from elsewhere."""

import html
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from shopskill_lib.files import write_bytes

STYLE = """
body { font: 16px/1.5 system-ui, "Noto Sans CJK SC", sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; }
nav { border-bottom: 1px solid #bbb; padding-bottom: .6rem; margin-bottom: 1.5rem; }
nav a { margin-right: 1.2rem; }
section { border-bottom: 1px solid #bbb; padding-bottom: 1.5rem; margin-bottom: 1.5rem; }
pre { background: #f6f6f4; padding: .5rem .8rem; white-space: pre-wrap; font-size: .82rem; line-height: 1.4; }
table { border-collapse: collapse; font-size: .78rem; margin: .5rem 0; }
table.dataframe { border: 0; }
th, td { border: 0; border-bottom: 1px solid #ddd; padding: .2rem .5rem; text-align: right; }
td { max-width: 24rem; overflow-wrap: anywhere; }
th:first-child, td:first-child { text-align: left; }
div.jp-RenderedHTMLCommon { overflow-x: auto; }
img, svg { max-width: 100%; height: auto; }
a.anchor-link { display: none; }
"""


def write(title: str, notebooks: Sequence[Path], path: Path) -> Path:
    """Render executed notebooks, in order, as one page.

    Raises:
        OutputError: the page cannot be written.
    """
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True
    )
    exporter.embed_images = True
    links = " ".join(f'<a href="#{item.stem}">{html.escape(item.stem)}</a>' for item in notebooks)
    parts = [f'<section id="{item.stem}">{_body(exporter, item)}</section>' for item in notebooks]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><nav>{links}</nav>\n{''.join(parts)}</body></html>\n"
    )
    write_bytes(path, page.encode())
    return path


def _body(exporter: HTMLExporter, path: Path) -> str:
    """Render one notebook."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    body, _ = exporter.from_notebook_node(notebook)
    return str(body)
