"""What differs from run to run, and the placeholder that stands for it. Nothing else is changed."""

import re
from pathlib import Path

# In this order, each everywhere in a text.
RULES: tuple[tuple[str, str], ...] = (
    (r'("seconds": |\bseconds: )[\d.e-]+', r"\1<seconds>"),  # how long a step took
    (r"\(\d+\.\d\d s\)", "(<seconds> s)"),
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"(?m)^(Date|ETag|Content-Length): .*", r"\1: <varies>"),
    (r'("pid": |\b(?:pid|process):? )(?!47117)\d+', r"\1<pid>"),
    (r"`kill (?!47117)[\d ]+`", "`kill <pid>`"),
    (r"\b(STATE|Ready|Draining|Down) +(PID|-|\d+)(?= )", r"\1 <pid>"),
    (r"127\.0\.0\.1:\d{5}\b", "127.0.0.1:<port>"),
    # Of the metrics, what an agent's own run costs and how long things took.
    (
        r"(?m)^((?:process|nodeagent_(?:sample_age|\w+_duration|gpu_xid_last))_\S*) .*",
        r"\1 <varies>",
    ),
    # When a decision was taken, and which of two GPUs came first.
    (r"(?m)^last hour: \d+ events?;.*\n(?:\d\d:\d\d:\d\dZ  .*\n)*", "<last hour>\n"),
    # These checks need a minute of readings, and then they are there.
    (r'(?m)^nodeagent_gpu_health\{check="(?:thermal|power|clocks)".*\n', ""),
    (r"the last answer is \d+ s old", "the last answer is <seconds> s old"),
    # Two readers look at a lost GPU, and either may be the first.
    (r"\[nvml\w+: GpuIsLost", "[<call>: GpuIsLost"),
    (r'(python=")[\d.]+', r"\1<version>"),
    # Other programs of this machine, such as those that other tests start.
    (r"(?m)^\w+ +other owners .*\n(?: {9,}.*\n)?", "<other owners>\n"),
)


def settled(text: str, folder: Path) -> str:
    """The text with placeholders; `folder` is where the case ran."""
    text = text.replace(str(folder), "<folder>")
    for pattern, placeholder in RULES:
        text = re.sub(pattern, placeholder, text)
    return text
