"""The part that setup.cfg cannot express: the README as a package index shows it, with links that work there."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parent


def repository() -> str:
    """The address of the source, from setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(line.split(" = ") for line in config["metadata"]["project_urls"].split("\n") if line)
    return urls["Source"]


def with_absolute_links(text: str, base: str) -> str:
    """Make relative links in Markdown point into the repository at `base`: to pages, and to raw images."""
    text = re.sub(r"!\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", rf"![\1]({base}/raw/main/\2)", text)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", rf"[\1]({base}/blob/main/\2)", text)


if __name__ == "__main__":
    from setuptools import setup

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(long_description=with_absolute_links(readme, repository()), long_description_content_type="text/markdown")
