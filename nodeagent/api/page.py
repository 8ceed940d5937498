"""The page for people: one file, without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def _hash_of(element: str) -> str:
    found = re.search(rf"<{element}>(.*?)</{element}>", PAGE, re.DOTALL)
    content = found[1].encode() if found else b""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


# Only the style and the script that are in the file itself may act, and only on this address.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_hash_of('style')}; script-src {_hash_of('script')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
