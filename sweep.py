"""The same as `quantattn sweep`."""

from quantattn.cli import main

if __name__ == "__main__":
    raise SystemExit(main("sweep"))
