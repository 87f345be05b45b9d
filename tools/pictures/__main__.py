"""Write the pictures into docs/pictures; `make pictures` calls it.

    PYTHONPATH=tools:tests python -m pictures [--drawings]

`--drawings` leaves out the screenshots, which need Chromium and the default model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pictures.chart import draw_chart
from pictures.house import draw_house
from pictures.tables import DOCS

FOLDER = DOCS / "pictures"
DRAWINGS = {"peers.svg": draw_chart, "house.svg": draw_house}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drawings", action="store_true")
    only_drawings = parser.parse_args().drawings
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        write(FOLDER / name, draw().encode())
    if only_drawings:
        return
    from pictures.screens import cache_page, chat_page, planner_page
    from server.browser import running_browser

    with running_browser() as browser:
        write(FOLDER / "planner.png", planner_page(browser))
        write(FOLDER / "chat.png", chat_page(browser))
        write(FOLDER / "cache.png", cache_page(browser))


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    print(f"{path.relative_to(DOCS.parent)}: {len(content) / 1000:.0f} KB")


if __name__ == "__main__":
    main()
