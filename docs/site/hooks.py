"""The parts of the site that are not in docs/: pages from the root of the repository, the reference, the notebook with
its outputs, and a report of MobileNetV2.

They are made when the site is built, so that they match this version.
"""

from __future__ import annotations

import configparser
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from executed import as_markdown, run_notebook

ROOT = Path(__file__).parent.parent.parent
OF_THE_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
REPORT = "mobilenet-v2-report.html"

REFERENCE = """# Python: every name

Everything that `import pimflow` provides: functions first, then the classes of their results. [By example](api.md) is
the better place to begin.
"""

REPORT_PAGE = f"""---
hide: [toc]
---

# A report, live

The output of `pimflow report` for MobileNetV2 under the policy `auto`: one page that needs nothing but a browser. Click
a node in any chart, and the others follow. [Open it alone]({REPORT}){{ .md-button }}

<iframe class="report" src="{REPORT}" title="The report of MobileNetV2"></iframe>

How to make it, and what each part shows: [the tutorial](tutorial.md#look-at-the-report).
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the address of the source from setup.cfg; as a link, because `repo_url` makes every reader's browser query
    GitHub."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(line.split(" = ") for line in parser["metadata"]["project_urls"].split("\n") if line)
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": urls["Source"], "name": "Source"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that are not in docs/."""
    for source, page in OF_THE_ROOT.items():
        files.append(File.generated(config, page, content=from_the_root((ROOT / source).read_text(encoding="utf-8"))))
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "notebook.md", content=notebook()))
    files.append(File.generated(config, "example-report.md", content=REPORT_PAGE))
    files.append(File.generated(config, REPORT, content=report()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to the generated files; `<!-- site: TEXT -->` is text that only the site has."""
    for source, made in OF_THE_ROOT.items():
        markdown = markdown.replace(f"](../{source}", f"]({made}")
    markdown = markdown.replace("](notebook.ipynb)", "](notebook.md)")
    return re.sub(r"<!-- site: (.*?) -->", r"\1", markdown, flags=re.DOTALL)


def from_the_root(text: str) -> str:
    """A page of the root, with links relative to docs/."""
    return re.sub(r"\]\((?:docs/)?([^):]+\.md)", lambda link: f"]({OF_THE_ROOT.get(link[1], link[1])}", text)


def reference() -> str:
    """A page that makes mkdocstrings show every public name."""
    import pimflow

    names: Mapping[str, Any] = {name: getattr(pimflow, name) for name in pimflow.__all__ if not name.startswith("__")}
    parts = [REFERENCE]
    for title, classes in (("Functions", False), ("Classes", True)):
        entries = (
            f"::: {item.__module__}.{item.__qualname__}" for item in names.values() if isinstance(item, type) == classes
        )
        parts += [f"## {title}", *entries]
    return "\n\n".join(parts)


def notebook() -> str:
    """The notebook, run during the build."""
    with tempfile.TemporaryDirectory() as folder:
        return as_markdown(run_notebook(ROOT / "docs" / "notebook.ipynb", Path(folder)))


def report() -> str:
    """The HTML report of MobileNetV2, compiled and verified during the build."""
    import pimflow

    return pimflow.html_report(pimflow.compile("zoo:mobilenet-v2"), verify=True).html
