"""`nodeagent completion`: the script by which a shell completes the command line.

Each is one text made of the declared commands, and starts no program when it completes.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from nodeagent.cli.commands import PROGRAM, all_options
from nodeagent.cli.declarations import Command, Option
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.runbook import runbook
from nodeagent.simulation.boards import board_names

# A command with its words (`nodeagent`, `simulate`, `occupy`).
Named: TypeAlias = tuple[tuple[str, ...], Command]


def run_completion(options: Namespace, output: Output) -> ExitCode:
    """Print it, whatever the format: a shell reads it."""
    output.text({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]())
    return ExitCode.DONE


def all_commands(named: Named = (("nodeagent",), PROGRAM)) -> Iterator[Named]:
    """This one and those below it."""
    path, command = named
    yield named
    for name, child in command.subcommands().items():
        yield from all_commands(((*path, name), child))


def _options(command: Command) -> list[Option]:
    return [each for each in all_options(command) if not each.is_argument]


def _arguments(command: Command) -> list[Option]:
    return [each for each in command.options if each.is_argument]


def _offered(option: Option) -> tuple[str, ...]:
    """What a shell completes: all that it takes, or some of it."""
    if option.names == ("--simulate",):
        return board_names()
    if option.names == ("codes",):  # in one word each, as `explain` takes them, too
        spellings = (e.code.replace("'", "").replace(" ", "-") for e in runbook().entries)
        return tuple(dict.fromkeys(spellings))
    return option.choices


def _names(options: Iterable[Option]) -> list[str]:
    return list(dict.fromkeys(name for each in options for name in each.names))


def _valued() -> list[Option]:
    return [o for _, command in all_commands() for o in _options(command) if o.value]


def _below() -> list[str]:
    """`nodeagent simulate occupy`, for every command."""
    return [" ".join(path) for path, _ in all_commands()][1:]


# --- bash, 4 or later: one function ---------------------------------------------------------------

_BASH = """\
# Completes nodeagent in bash; written by: nodeagent completion bash
_nodeagent() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local at=nodeagent i=1 words= options= files=
    # Which command this is: the values of options are passed over, also those behind a "=".
    while ((i < COMP_CWORD)); do
        case ${{COMP_WORDS[i]}} in
            {valued}) [[ ${{COMP_WORDS[i+1]}} == = ]] && ((i += 1)); ((i += 1)) ;;
            *) case "$at ${{COMP_WORDS[i]}}" in
                {paths}) at+=" ${{COMP_WORDS[i]}}" ;;
            esac ;;
        esac
        ((i += 1))
    done
    [[ $before == = ]] && before=${{COMP_WORDS[COMP_CWORD-2]}}
    [[ $current == = ]] && current=
    case $before in
{values}
        *) case $at in
{commands}
        esac
        [[ $current == -* || -z $words$files ]] && words=$options files= ;;
    esac
    mapfile -t COMPREPLY < <(compgen $files -W "$words" -- "$current")
    [[ -n $files ]] && compopt -o filenames 2> /dev/null
    return 0
}}
complete -F _nodeagent nodeagent
"""


def _bash() -> str:
    alike: dict[str, list[Option]] = {}  # by what may follow them
    for option in _valued():
        alike.setdefault(_bash_value(option), []).append(option)
    return _BASH.format(
        valued="|".join(_names(_valued())),
        paths="|".join(f'"{words}"' for words in _below()),
        values="\n".join(f"        {'|'.join(_names(o))}) {v} ;;" for v, o in alike.items()),
        commands="\n".join(f"            {_bash_case(*named)}" for named in all_commands()),
    )


def _bash_case(path: tuple[str, ...], command: Command) -> str:
    found = ":"
    if below := command.subcommands():
        found = _bash_words(below)
    elif arguments := _arguments(command):
        found = _bash_value(arguments[0])
    return f'"{" ".join(path)}") options="{" ".join(_names(_options(command)))}"; {found} ;;'


def _bash_value(option: Option) -> str:
    """The statement that says what a value can be."""
    if offered := _offered(option):
        return _bash_words(offered)
    return {"FILE": "files=-f", "DIR": "files=-d"}.get(option.value, ":")


def _bash_words(words: Iterable[str]) -> str:
    return f"words={shlex.quote(' '.join(words))}"


# --- fish: one line for each command and option ---------------------------------------------------

_FISH = """\
# Completes nodeagent in fish; written by: nodeagent completion fish
function __nodeagent_at
    set -l words (commandline -opc)
    set -e words[1]
    set -l at nodeagent
    set -l value no
    for word in $words
        if test $value = yes
            set value no
        else if contains -- $word {valued}
            set value yes
        else if contains -- "$at $word" {paths}
            set at "$at $word"
        end
    end
    test "$at" = "$argv"
end
complete -c nodeagent -f
"""


def _fish() -> str:
    head = _FISH.format(
        valued=" ".join(_names(_valued())), paths=" ".join(map(_fish_quoted, _below()))
    )
    return head + "".join(f"{row}\n" for named in all_commands() for row in _fish_rows(*named))


def _fish_rows(path: tuple[str, ...], command: Command) -> Iterator[str]:
    here = f"complete -c nodeagent -n '__nodeagent_at {' '.join(path)}'"
    for name, child in command.subcommands().items():
        yield f"{here} -a {name} -d {_fish_quoted(child.sentence)}"
    for option in _options(command):
        names = (f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
        about = _fish_quoted(option.details["help"])
        yield f"{here} {' '.join(names)}{_fish_value(option)} -d {about}"
    for argument in _arguments(command):
        words = _fish_value(argument).removeprefix(" -x").removeprefix(" -r")
        yield f"{here}{words} -d {_fish_quoted(argument.details['help'])}"


def _fish_value(option: Option) -> str:
    """With `-r` it takes a value, which may be a file; with `-x` one that is none."""
    if not option.value:
        return ""
    if offered := _offered(option):
        return f" -x -a {_fish_quoted(' '.join(offered))}"
    directories = " -x -a '(__fish_complete_directories)'"
    return {"FILE": " -r -F", "DIR": directories}.get(option.value, " -x")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- zsh: a function for each command -------------------------------------------------------------

_ZSH = """\
#compdef nodeagent
# Completes nodeagent in zsh; written by: nodeagent completion zsh
{functions}
if [[ $funcstack[1] == _nodeagent ]]; then
  _nodeagent "$@"
else
  compdef _nodeagent nodeagent
fi
"""
_ZSH_FUNCTION = """
{name}() {{
  local curcontext=$curcontext context state state_descr line
  typeset -A opt_args
  _arguments -C \\
{specs}
}}
"""
_ZSH_BELOW = """\
    '1:command:->command' \\
    '*::argument:->argument'
  case $state in
    command)
      local -a names=(
{names}
      )
      _describe command names ;;
    argument)
      case $words[1] in
{calls}
      esac ;;
  esac"""


def _zsh() -> str:
    return _ZSH.format(functions="".join(_zsh_function(*named) for named in all_commands()))


def _zsh_function(path: tuple[str, ...], command: Command) -> str:
    function = "_" + "_".join(path)
    specs = "".join(f"    {_zsh_option(option)} \\\n" for option in _options(command))
    if below := command.subcommands():
        names = (f"        {_zsh_quoted(f'{n}:{c.sentence}')}" for n, c in below.items())
        calls = (f"        {name}) {function}_{name} ;;" for name in below)
        specs += _ZSH_BELOW.format(names="\n".join(names), calls="\n".join(calls))
    else:
        arguments = (
            _zsh_quoted(f"{'*' if o.details.get('nargs') == '*' else number}{_zsh_value(o)}")
            for number, o in enumerate(_arguments(command), 1)
        )
        specs += " \\\n".join(f"    {spec}" for spec in (*arguments, "&& return"))
    return _ZSH_FUNCTION.format(name=function, specs=specs)


def _zsh_option(option: Option) -> str:
    """The value may follow at once (`-oyaml`, `--output=yaml`), or as a word of its own."""
    names = list(option.names)
    if option.value:
        names = [f"{name}=" if name.startswith("--") else f"{name}+" for name in names]
    meaning = option.details["help"]
    for character in "\\[]":
        meaning = meaning.replace(character, f"\\{character}")
    rest = _zsh_quoted(f"[{meaning}]{_zsh_value(option)}")
    if len(names) == 1:
        return f"{names[0]}{rest}"
    return f"{_zsh_quoted('(' + ' '.join(option.names) + ')')}{{{','.join(names)}}}{rest}"


def _zsh_value(option: Option) -> str:
    if not option.value:
        return ""
    if offered := _offered(option):
        return f":{option.value}:({' '.join(offered)})"
    action = {"FILE": "_files", "DIR": "_files -/"}.get(option.value, "")
    return f":{option.value}:{action}"


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
