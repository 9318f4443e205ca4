"""The frame of every page: nothing is fetched, and no script runs except the one in the page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from pimflow.report.page.markup import Markup, asset, element, embedded_json


def html_document(title: str, body: Sequence[Markup], *, script: str, style: str = "", data: Any = None) -> str:
    """A page as text.

    Args:
        title: of the window.
        body: the content.
        script: links the parts of the page, in addition to the script of all pages; the page's policy allows no other.
        style: in addition to the style of all pages.
        data: the input of the script, as the JSON of the element "data"; None for no data.
    """
    shared = asset("charts.css") + asset("page.css")
    script = asset("shared.js") + script
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; img-src data:"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=f"{policy}; base-uri 'none'; form-action 'none'"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(shared + style)),
    )
    read = [] if data is None else [element("script", embedded_json(data), type="application/json", id="data")]
    content = element("body", *body, *read, element("script", Markup(script)))
    return f"<!DOCTYPE html>\n{element('html', head, content, lang='en')}\n"
