"""Completion of commands, settings and their choices in bash and zsh.

    eval "$(quantattn --shell-completion install=bash)"          # or install=zsh

Hydra knows the settings and the files of each group; its own script knows no commands before them, so this one asks it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from omegaconf import DictConfig

from quantattn.cli.config import conf_folder, run_application
from quantattn.cli.errors import DONE, UsageError

SHELLS = ("bash", "zsh")
SCRIPT = """\
_quantattn_completion()
{
    local line="${COMP_LINE:0:COMP_POINT}" words asked word
    read -ra words <<< "$line"
    case "${words[0]}" in
        *python*) [ -f "${words[1]}" ] || return; asked=("${words[0]}" "${words[1]}") ;;
        *) asked=("${words[0]}") ;;
    esac
    case "$line" in *[[:space:]]) word="" ;; *) word="${words[${#words[@]}-1]}" ;; esac
    COMPREPLY=($(compgen -W "$(COMP_LINE="$line" "${asked[@]}" -sc query=bash 2>/dev/null)" -- "$word"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _quantattn_completion quantattn
_quantattn_scripts()
{
    case "${COMP_WORDS[1]}" in train.py|sweep.py|score.py|bench.py) _quantattn_completion ;; esac
}
complete -o nospace -o default -F _quantattn_scripts python python3
"""


def completion(arguments: Sequence[str], commands: Sequence[str]) -> int:
    """Print the script that a shell is to evaluate, or what may come next on the line that it asks about.

    Args:
        arguments: of the process, the command first where a script names it.
        commands: names of all commands.

    Raises:
        UsageError: another shell than bash or zsh.
    """
    asked = dict(each.split("=", 1) for each in arguments if each.startswith(("install=", "query=", "uninstall=")))
    if "install" in asked:
        if asked["install"] not in SHELLS:
            raise UsageError(f"install={asked['install']}: there is completion for {' and '.join(SHELLS)}")
        print(("autoload -U +X bashcompinit && bashcompinit\n" if asked["install"] == "zsh" else "") + SCRIPT, end="")
        return DONE
    if "query" not in asked:
        raise UsageError("--shell-completion takes install=bash or install=zsh")
    line = os.environ.get("COMP_LINE", "")
    words = line.split()
    named = next((each for each in arguments if each in commands), None)  # by a script of this name
    if named is None:
        rest = words[1:]
        if len(rest) + line[-1:].isspace() < 2:
            print(" ".join(commands))
            return DONE
        named, *given = rest
    else:
        given = words[2:]
    if named not in commands or not (conf_folder() / f"{named}.yaml").is_file():
        return DONE
    ended = " " if line[-1:].isspace() else ""
    os.environ["COMP_LINE"] = f"quantattn {' '.join(given)}{ended}"
    return run_application(named, ["-sc", "query=bash"], _never)


def _never(config: DictConfig) -> int:
    raise AssertionError("a question runs nothing")
