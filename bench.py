"""The same as `quantattn bench`."""

from quantattn.cli import main

if __name__ == "__main__":
    raise SystemExit(main("bench"))
