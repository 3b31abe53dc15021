"""Which command, and what becomes of its failures."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from quantattn.cli.errors import DONE, INTERRUPTED, USAGE, complain, exit_code, nearest


@dataclass(frozen=True)
class Command:
    """Where in `quantattn.cli` the function `(arguments) -> exit code` of a command stands, and what it does."""

    place: str
    summary: str

    def run(self, arguments: list[str]) -> int:
        """Import the command and carry it out."""
        return int(pkgutil.resolve_name(f"quantattn.cli.{self.place}")(arguments))


COMMANDS = {
    "train": Command("composed:train", "pretrain or fine-tune an encoder; a run folder and a report come out"),
    "sweep": Command("composed:sweep", "search over settings of an experiment; workers share one study"),
    "score": Command("composed:score", "apply a trained model to tables; one row a decision comes out"),
    "export": Command("composed:export", "write a trained model for other runtimes, as ONNX or for torch.export"),
    "ensemble": Command("ensemble:run", "make one model of runs that differ by their seed, judged beside them"),
    "evaluate": Command("evaluate:run", "judge any table of scores beside baselines; a page comes out"),
    "report": Command("report:run", "set the closing tables of several runs beside each other"),
    "bench": Command("composed:bench", "time attention beside its peers, behind the error budget"),
    "validate": Command("validate:run", "print how far every backend is from float64 truth"),
    "prepare": Command("composed:prepare", "write a source as sorted Parquet shards with a manifest"),
    "changes": Command("composed:changes", "tell how much an item changed from each filing to the next"),
    "doctor": Command("doctor:run", "read a folder of data and say what is in it and what is wrong with it"),
}
"""What there is."""


def usage() -> str:
    """The text of `quantattn --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: quantattn COMMAND [arguments]",
            "",
            "Exact attention encoders for long financial sequences.",
            "",
            *lines,
            "",
            "`quantattn COMMAND --help` says what one takes. train, sweep, prepare, score, export, changes and bench",
            "take Hydra overrides, such as `quantattn train experiment=lobster data.path=DIR model=small`. Exit",
            "codes: 0 done, 1 a check or a run failed, 2 wrong usage or configuration, 143 stopped by SIGTERM and 130",
            "by Ctrl-C, after saving when there was something to save. QUANTATTN_DEBUG=1 shows tracebacks.",
        ]
    )


def main(command: str | None = None) -> int:
    """Run the command named by `command`, or by the first argument of the process, and return its exit code."""
    arguments = sys.argv[1:] if command is None else [command, *sys.argv[1:]]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return DONE if arguments else USAGE
    name, *rest = arguments
    if {"-sc", "--shell-completion"} & set(arguments):
        return _answered(name, lambda: _completed(arguments))
    if name == "--version":
        from quantattn import __version__

        print(__version__)
        return DONE
    if name not in COMMANDS:
        print(f"quantattn: there is no command {name!r}{nearest(name, COMMANDS)}", file=sys.stderr)
        return USAGE
    return _answered(name, lambda: COMMANDS[name].run(rest))


def _completed(arguments: list[str]) -> int:
    from quantattn.cli.completion import completion  # and Hydra, which most commands do without

    return completion(arguments, tuple(COMMANDS))


def _answered(name: str, call: Callable[[], int]) -> int:
    """The exit code of a command, with what went wrong said in a sentence."""
    try:
        return call()
    except KeyboardInterrupt:
        print(f"quantattn {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        complain(name, error)
        return code
