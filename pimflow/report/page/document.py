"""What every page is around its content: nothing is fetched, and no script runs but the one that stands in it."""

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
        script: what links its parts, beside what all pages share; the page's policy runs no other.
        style: beside what all pages share.
        data: what the script reads, as the JSON of the element "data"; None is nothing.
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
