"""Pictures of a report for the docs, taken in a headless Chromium.

python -m tests.screenshots report.html docs
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser import NAMES, Page, browse, installed

PICTURES = ("report.webp", "report_dark.webp", "report_phone.webp")


def take(page: Page, report: Path, folder: Path) -> None:
    """Curves on a desktop, an environment in the dark, and on a phone."""
    desktop, dark, phone = (folder / name for name in PICTURES)
    page.shape(1240, 860)
    page.open(report)
    page.picture(desktop)
    page.shape(1240, 860, dark=True)
    show_played(page)
    page.picture(dark)
    page.shape(390, 800, scale=1.5)
    page.run("scrollTo(0, 0)")
    page.picture(phone)


def show_played(page: Page) -> None:
    """Open the environment of highest regret of which plays in both arms were kept."""
    page.run("location.hash = '#environments'")
    page.run(
        "((order) => { order.value = 'regret'; order.dispatchEvent(new Event('input', "
        "{bubbles: true})); })(document.getElementById('filters').elements.order)"
    )
    page.run("new Promise((done) => setTimeout(done, 500))")  # the list is put in order
    for _ in range(200):
        page.press("j")
        page.wait("location.hash === `#e/${document.getElementById('detail').dataset.key}`")
        if page.run("document.querySelectorAll('.pair[open] .arm').length") == 2:
            return


def main() -> None:
    if len(sys.argv) != 3 or not installed():
        sys.exit(f"usage: {__doc__.splitlines()[2]}, with one of {', '.join(NAMES)} installed")
    with tempfile.TemporaryDirectory() as profile, browse(installed(), Path(profile)) as page:
        take(page, Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
