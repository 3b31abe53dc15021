"""Build the site and check what was built: `python docs/site/build.py [FOLDER]`, by default build/site.

Every warning is an error, and so is a link or an anchor that is not there and anything that a page would fetch.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from check import problems
from sphinx.cmd.build import main as sphinx

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MADE = ".buildinfo"  # what Sphinx leaves in every folder that it wrote


def main(arguments: list[str]) -> int:
    """0 when the site stands in the folder, 1 when something is wrong with it, 2 when it cannot be written there."""
    folder = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MADE).is_file():
            print(f"{folder} holds something that is no site; name another folder", file=sys.stderr)
            return 2
        shutil.rmtree(folder)
    began = time.monotonic()
    options = ["-b", "html", "-c", str(HERE), "-d", str(folder / ".doctrees"), "-E", "-W", "--keep-going", "-q"]
    if sphinx([*options, str(ROOT / "docs"), str(folder)]):
        return 1
    shutil.rmtree(folder / ".doctrees")
    found = problems(folder)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    pages = sum(1 for _ in folder.rglob("*.html"))
    print(f"{pages} pages in {folder}, {time.monotonic() - began:.0f} s; {len(found) or 'no'} broken links or fetches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
