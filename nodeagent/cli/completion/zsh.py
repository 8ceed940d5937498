"""Completion for zsh: a function for each command, which starts no program."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.cli.command_tree import Command, Word

_HEAD = """\
#compdef nodeagent
# Completes nodeagent in zsh; written by: nodeagent completion zsh
"""
_FUNCTION = """
{name}() {{
  local curcontext=$curcontext context state state_descr line
  typeset -A opt_args
  _arguments -C \\
{specs}
}}
"""
_BELOW = """\
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
_TAIL = """
if [[ $funcstack[1] == _nodeagent ]]; then
  _nodeagent "$@"
else
  compdef _nodeagent nodeagent
fi
"""


def script(tree: Command) -> str:
    """The script."""
    return _HEAD + "".join(map(_function, tree.all())) + _TAIL


def _function(command: Command) -> str:
    specs = "".join(f"    {spec} \\\n" for spec in map(_option, command.options))
    if command.commands:
        names = (f"        {_quoted(f'{c.name}:{c.description}')}" for c in command.commands)
        calls = (f"        {c.name}) {_name(c)} ;;" for c in command.commands)
        specs += _BELOW.format(names="\n".join(names), calls="\n".join(calls))
    else:
        specs += " \\\n".join(f"    {spec}" for spec in (*_arguments(command), "&& return"))
    return _FUNCTION.format(name=_name(command), specs=specs)


def _name(command: Command) -> str:
    return "_" + "_".join(command.path)


def _option(word: Word) -> str:
    names = [_with_value(name) if word.value else name for name in word.names]
    rest = _quoted(f"[{_in_brackets(word.meaning)}]{_value(word)}")
    if len(names) == 1:
        return f"{names[0]}{rest}"
    return f"{_quoted('(' + ' '.join(word.names) + ')')}{{{','.join(names)}}}{rest}"


def _with_value(name: str) -> str:
    """The value may follow at once (`-oyaml`, `--output=yaml`), or as a word of its own."""
    return f"{name}=" if name.startswith("--") else f"{name}+"


def _arguments(command: Command) -> Iterator[str]:
    for number, word in enumerate(command.arguments, 1):
        yield _quoted(f"{'*' if word.repeated else number}{_value(word)}")


def _value(word: Word) -> str:
    if not word.value:
        return ""
    if word.offered:
        return f":{word.value}:({' '.join(word.offered)})"
    action = {"FILE": "_files", "DIR": "_files -/"}.get(word.value, "")
    return f":{word.value}:{action}"


def _in_brackets(text: str) -> str:
    for character in "\\[]":
        text = text.replace(character, f"\\{character}")
    return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
