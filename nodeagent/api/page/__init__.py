"""The page for people at `/`: one self-contained answer, joined from the files in this folder.

Only the style and the script that are in it may act, only on the address that it came from, and
never by making markup or code of a text.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Final

# In this order: what a file does at once, it does with what stands before it.
_SCRIPTS: Final = (
    *("words.js", "facts.js", "elements.js", "picture.js", "details.js", "grid.js"),
    *("problems.js", "tables.js", "timeline.js", "preview.js", "live.js"),
)


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """The hash by which a Content-Security-Policy admits a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


_STYLE: Final = _text("page.css")
_SCRIPT: Final = "".join(map(_text, _SCRIPTS))

PAGE: Final = (
    _text("page.html").replace("/* page.css */", _STYLE).replace("/* page.js */", _SCRIPT).encode()
)
CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
