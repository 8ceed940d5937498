"""Completion for fish: one line for each command and option, which start no program."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.cli.command_tree import Command, Word

_HEAD = """\
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


def script(tree: Command) -> str:
    """The script."""
    commands = list(tree.all())
    valued = (n for c in commands for word in c.options if word.value for n in word.names)
    paths = (_quoted(" ".join(command.path)) for command in commands[1:])
    head = _HEAD.format(valued=" ".join(dict.fromkeys(valued)), paths=" ".join(paths))
    return head + "".join(f"{row}\n" for command in commands for row in _rows(command))


def _rows(command: Command) -> Iterator[str]:
    here = f"complete -c nodeagent -n '__nodeagent_at {' '.join(command.path)}'"
    for child in command.commands:
        yield f"{here} -a {child.name} -d {_quoted(child.description)}"
    for word in command.options:
        names = " ".join(_name(name) for name in word.names)
        yield f"{here} {names}{_value(word)} -d {_quoted(word.meaning)}"
    for word in command.arguments:
        words = _value(word).removeprefix(" -x").removeprefix(" -r")
        yield f"{here}{words} -d {_quoted(word.meaning)}"


def _name(name: str) -> str:
    return f"-l {name.removeprefix('--')}" if name.startswith("--") else f"-s {name[1:]}"


def _value(word: Word) -> str:
    """With `-r` it takes a value, which may be a file; with `-x` one that is none."""
    if not word.value:
        return ""
    if word.offered:
        return f" -x -a {_quoted(' '.join(word.offered))}"
    if word.takes_file:
        return " -r -F"
    return " -x -a '(__fish_complete_directories)'" if word.takes_directory else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
