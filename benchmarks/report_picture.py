"""Makes docs/images/report.png: the top of the HTML report of MobileNetV2, as Chromium shows it.

python benchmarks/report_picture.py
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from shutil import which

import pimflow

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "report.png"
SIZE = (1280, 1180)
NAMES = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    browser = next(filter(None, map(which, NAMES)), None)
    if browser is None:
        raise SystemExit("no Chromium on this machine; on Debian: apt-get install chromium")
    report = pimflow.html_report(pimflow.compile("zoo:mobilenet-v2"), verify=True)
    with tempfile.TemporaryDirectory() as folder:
        page = report.save(Path(folder) / "page.html")
        size = f"--window-size={SIZE[0]},{SIZE[1]}"
        flags = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            size,
            f"--screenshot={PICTURE}",
        )
        subprocess.run([browser, *flags, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
