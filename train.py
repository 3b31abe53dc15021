"""The same as `quantattn train`."""

from quantattn.cli import main

if __name__ == "__main__":
    raise SystemExit(main("train"))
