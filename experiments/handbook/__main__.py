"""`python -m experiments.handbook OUT`: write the site's sources."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.handbook.site import CONFIG, DOCS, build


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description="Write the sources of the documentation site.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder; OUT/docs and OUT/mkdocs.yml are replaced")
    out = parser.parse_args().out
    if not (DOCS.is_dir() and CONFIG.is_file()):
        parser.exit(2, f"error: no {DOCS} and {CONFIG.name}: the site is made in a checkout of the repository\n")
    out.mkdir(parents=True, exist_ok=True)
    build(out)
    print(f"{out}: {sum(1 for _ in (out / 'docs').rglob('*.md'))} pages")


if __name__ == "__main__":
    main()
