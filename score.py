"""The same as `quantattn score`."""

from quantattn.cli import main

if __name__ == "__main__":
    raise SystemExit(main("score"))
