"""What setup.cfg cannot say: the README as an index of packages shows it, with links that lead somewhere from there."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parent


def repository() -> str:
    """Where the source is, as setup.cfg says."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(line.split(" = ") for line in config["metadata"]["project_urls"].split("\n") if line)
    return urls["Source"]


def with_absolute_links(text: str, base: str) -> str:
    """Markdown whose relative links lead into the repository at `base`: pages to show, images as they are."""
    text = re.sub(r"!\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", rf"![\1]({base}/raw/main/\2)", text)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)", rf"[\1]({base}/blob/main/\2)", text)


if __name__ == "__main__":
    from setuptools import setup

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(long_description=with_absolute_links(readme, repository()), long_description_content_type="text/markdown")
