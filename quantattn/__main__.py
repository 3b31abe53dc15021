"""`python -m quantattn COMMAND …` is the same as `quantattn COMMAND …`."""

from quantattn.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
