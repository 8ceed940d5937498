import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.documents.bounded_yaml import MAX_DEPTH, MAX_NODES, MAX_TEXT, plain_scalar, read_tree
from nodeagent.errors import DocumentError
from nodeagent.plan.problems import Problem
from tests.draws import draws

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


def faults(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(DocumentError) as caught:
        read_tree(text)
    return caught.value.problems


def test_yaml_and_json_are_the_same() -> None:
    data = {"version": "v1", "gpus": [{"devices": [0, 1], "mig": {"3g.40gb": 1}}]}
    yaml_text = "version: v1\ngpus:\n- devices: [0, 1]\n  mig:\n    3g.40gb: 1\n"
    assert read_tree(json.dumps(data)).value == data
    assert read_tree(json.dumps(data, indent="\t")).value == data
    assert read_tree(yaml_text).value == data
    assert read_tree(b"\xef\xbb\xbf" + yaml_text.encode()).value == data


def test_places_are_those_of_the_text() -> None:
    tree = read_tree("a: 1\nb:\n  - {c: x}\n")
    assert tree.marks == {
        (): (1, 1),
        ("a",): (1, 4),
        ("b",): (3, 3),
        ("b", 0): (3, 5),
        ("b", 0, "c"): (3, 9),
    }
    assert tree.key_marks[("b", 0, "c")] == (3, 6)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (
            "a: 1\nb: 2\na: 3\n",
            "",
            'the key "a" is given twice, first in line 1 (line 3, column 1)',
        ),
        ("a: &x 1\n", "a", "the anchor &x is not allowed (line 1, column 4)"),
        ("a: !!str 1\n", "a", "the tag"),
        ("a: ! 1\n", "a", "the tag"),
        ("!!python/object/apply:os.system [id]\n", "", "the tag"),
        ("a: 1\n---\nb: 2\n", "", "a second document begins here (line 2, column 1)"),
        ("? [a]\n: 1\n", "", "a map or a list cannot be a key"),
        ("on: 1\n", "", 'YAML reads the bare word "on" as true'),
        ("x: {no: 1}\n", "x", 'YAML reads the bare word "no" as false'),
        ("0: 1\n", "", 'the bare word "0" as the number 0'),
        ("~: 1\n", "", 'the bare word "~" as nothing'),
        ("a: .nan\n", "a", "a finite number is needed"),
        ("a: [1, 010]\n", "a[1]", "leading zero"),
        ("a: [1,\nb", "", "neither YAML nor JSON"),
        ("a: b: c", "", "neither YAML nor JSON"),
        ("\tx: 1", "", "neither YAML nor JSON"),
        ("%YAML 3.0\n---\na: 1", "", "neither YAML nor JSON"),
        ('a: "\\x1b[31m"\n', "a", "the control character U+001B"),
        ("a\x00b", "", "the control character U+0000 (line 1, column 2)"),
        ("x\n\x1b", "", "the control character U+001B (line 2, column 1)"),
        ("a: \ud800", "", "the control character U+D800"),
        (b"\xff\xfea\x00", "", "not UTF-8 text (byte 1 is 0xff)"),
        (b"\x7fELF\x02\x01\x01\x00", "", "control character"),
        (b"\x80", "", "not UTF-8"),
    ],
)
def test_refused(text: str | bytes, path: str, words: str) -> None:
    [problem, *_] = faults(text)
    assert problem.path == path
    assert words in problem.message


def test_all_faults_of_form_at_once() -> None:
    problems = faults("a: 1\na: 2\nb: &x 1\nc: !t 2\non: 3\n")
    assert [p.message.split("(line ")[1] for p in problems] == [
        "2, column 1)",
        "3, column 4)",
        "4, column 4)",
        "5, column 1)",
    ]


def test_limits() -> None:
    assert read_tree("[" * MAX_DEPTH + "]" * MAX_DEPTH).value is not None
    assert "nested" in faults("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))[0].message
    assert read_tree("[" + "1," * (MAX_NODES - 1) + "]").value is not None
    assert f"more than {MAX_NODES:,} values" in faults("[" + "1," * MAX_NODES + "]")[0].message
    assert read_tree("#" * (MAX_TEXT - 1)).value is None
    assert "1 MiB" in faults("#" * MAX_TEXT)[0].message
    assert "1 MiB" in faults("é" * (MAX_TEXT // 2))[0].message  # bytes count


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "x" * MAX_TEXT,
        "[" * (MAX_TEXT - 1),
        "- " * (MAX_TEXT // 2 - 1),
        "{" * (MAX_TEXT - 1),
        "[" + "1," * (MAX_TEXT // 2 - 1),
        "".join(f"k{n}: 1\n" for n in range(90_000)),
        "\x01" * (MAX_TEXT - 1),
        "'" + "''" * (MAX_TEXT // 2 - 1),
        "&a " * (MAX_TEXT // 3 - 1),
        "a" * (MAX_TEXT - 2) + ":",
        "? " * (MAX_TEXT // 2 - 1),
    ],
    ids=str.__len__,
)
def test_refused_quickly(text: str) -> None:
    def seconds() -> float:
        begin = time.thread_time()
        faults(text)
        return time.thread_time() - begin

    assert min(seconds() for _ in range(3)) < 0.5


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text("abc xyz:-[]{}#é\"'", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcyn", max_size=3), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=draws(200))
@given(JSON)
def test_json_reads_as_json(value: object) -> None:
    assert read_tree(json.dumps(value, ensure_ascii=False)).value == value


def test_plain_scalars() -> None:
    """Words mean what mig-parted takes them for, and addresses and dates stay text."""
    stays = "3g.40gb 1g.10gb+me 0000:10:00.0 12:30 1000:1000 2024-01-01 1_000 v1 nope Infinite -"
    meanings: dict[str, object] = {text: text for text in stays.split()}
    meanings |= {"0": 0, "-1": -1, "+7": 7, "0x1F": 31, "1.5": 1.5, "1e3": 1000.0, ".5": 0.5}
    meanings |= dict.fromkeys(("true", "yes", "On", "y"), True)
    meanings |= {"OFF": False, "n": False, "": None, "~": None, "null": None}
    read = {text: plain_scalar(text) for text in meanings}
    assert read == meanings
    assert [type(value) for value in read.values()] == [type(v) for v in meanings.values()]


def test_plain_scalars_without_meaning() -> None:
    reasons = dict.fromkeys((".nan", "-.inf", "NaN", "Infinity"), "finite")
    reasons |= dict.fromkeys(("9" * 30, "1" + "0" * 5000, "0x" + "f" * 30, "1e999"), "too large")
    reasons["010"] = "leading zero"
    for text, reason in reasons.items():
        with pytest.raises(ValueError, match=reason):
            plain_scalar(text)
