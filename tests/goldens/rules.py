"""What differs from run to run, and the placeholder that stands for it. Nothing else is changed."""

from __future__ import annotations

import re
from pathlib import Path

# In this order, each everywhere in a text.
RULES: tuple[tuple[str, str], ...] = (
    (r'("seconds": |\bseconds: )[\d.e-]+', r"\1<seconds>"),  # how long a step took
    (r"\(\d+\.\d\d s\)", "(<seconds> s)"),
    # Other programs of this machine, such as those that other tests start.
    (r"(?m)^\w+ +other owners .*\n(?: {9,}.*\n)?", "<other owners>\n"),
)


def settled(text: str, folder: Path) -> str:
    """The text with placeholders; `folder` is where the case ran."""
    text = text.replace(str(folder), "<folder>")
    for pattern, placeholder in RULES:
        text = re.sub(pattern, placeholder, text)
    return text
