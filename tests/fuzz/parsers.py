"""Every reader of bytes or text from outside, with inputs that it accepts to begin with."""

from functools import cache

from tests.fuzz import documents, machine, objects, services
from tests.fuzz.runs import Parser


@cache
def all_parsers() -> dict[str, Parser]:
    found = (*documents.parsers(), *objects.parsers(), *machine.parsers(), *services.parsers())
    return {parser.name: parser for parser in found}
