"""Completion for bash, 4 or later: one function, which starts no program."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from nodeagent.cli.command_tree import Command, Word

_NOTHING = Word((), "", "", ())
_SCRIPT = """\
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


def script(tree: Command) -> str:
    """The script."""
    commands = list(tree.all())
    valued = [word for command in commands for word in command.options if word.value]
    return _SCRIPT.format(
        valued=_alternatives(valued),
        paths="|".join(f'"{" ".join(c.path)}"' for c in commands[1:]),
        values="\n".join(_values(valued)),
        commands="\n".join(f"            {row}" for row in map(_case, commands)),
    )


def _alternatives(words: list[Word]) -> str:
    return "|".join(dict.fromkeys(name for word in words for name in word.names))


def _values(valued: list[Word]) -> Iterator[str]:
    """What may follow each option: options alike together."""
    alike: dict[str, list[Word]] = {}
    for word in valued:
        alike.setdefault(_found(word), []).append(word)
    for found, words in alike.items():
        yield f"        {_alternatives(words)}) {found} ;;"


def _case(command: Command) -> str:
    options = " ".join(name for word in command.options for name in word.names)
    below = tuple(child.name for child in command.commands)
    found = _found(Word((), "", "", below) if below else next(iter(command.arguments), _NOTHING))
    return f'"{" ".join(command.path)}") options="{options}"; {found} ;;'


def _found(word: Word) -> str:
    """The statement that says what a value can be."""
    if word.offered:
        return f"words={shlex.quote(' '.join(word.offered))}"
    if word.takes_file or word.takes_directory:
        return f"files={'-f' if word.takes_file else '-d'}"
    return ":"
