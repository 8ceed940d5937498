"""Prometheus' text: what is written is what its own parser reads back."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable

import pytest

from nodeagent.metrics.exposition import Family, Page, block, decimals, render, whole


def test_numbers_are_written_as_dcgm_does() -> None:
    """Whole numbers without a point, doubles with six decimals, own values exactly."""

    def written(value: float, form: Callable[[float], str]) -> str:
        return render([Family("n", "gauge", "", {"": value}, form)]).split()[-1].decode()

    assert written(1980.0, whole) == "1980"
    assert written(37.6, whole) == "38"
    assert written(2**63, whole) == "9223372036854775808"
    assert written(68, decimals) == "68.000000"
    assert written(0, decimals) == "0.000000"
    assert written(5e-12, decimals) == "5.000000e-12"
    assert written(0.1 + 0.2, repr) == "0.30000000000000004"


def test_what_is_no_number_is_left_out() -> None:
    """A family of which nothing is left has no HELP and TYPE either."""
    series = {'{a="1"}': math.nan, '{a="2"}': 3.0, '{a="3"}': math.inf}
    assert render([Family("n", "gauge", "x", series)]).decode().splitlines()[2:] == ['n{a="2"} 3.0']
    assert render([Family("n", "gauge", "x", {"": math.nan})]) == b""
    assert render([Family("n", "gauge", "x", {})]) == b""


def test_texts_are_escaped() -> None:
    """Quotation marks, backslashes and line ends neither end a label nor a line."""
    assert block([("a", 'x"y\\z\n')]) == '{a="x\\"y\\\\z\\n"}'
    assert block([]) == ""
    text = render([Family("n", "gauge", "one\ntwo\\", {"": 1})]).decode()
    assert text.startswith("# HELP n one\\ntwo\\\\\n# TYPE n gauge\n")


@pytest.mark.parametrize("value", ['x"y', "x\\y", "x\ny", "x{y}", "x,y=", "ä ☃", ""])
def test_label_values_are_read_back(value: str) -> None:
    """Whatever a pod or a model is called, the parser finds that very name."""
    parser = pytest.importorskip("prometheus_client.parser")
    text = render([Family("n", "gauge", "h", {block([("a", value)]): 1})]).decode()
    (family,) = parser.text_string_to_metric_families(text)
    assert [s.labels for s in family.samples] == [{"a": value}]


def test_a_broken_text_costs_nothing_else() -> None:
    """Half of a surrogate pair cannot be encoded; it becomes a question mark."""
    series = {block([("pod", "a\udcff")]): 1.0, "": 2.0}
    assert b'a{pod="a?"} 1.0\na 2.0\n' in render([Family("a", "gauge", "x", series)])


def test_a_page_is_compressed_once_and_lines_are_added() -> None:
    """One gzip member holds the page and what a scrape adds; the page itself stays as it is."""
    page = Page(b"a 1\n" * 1000)
    assert gzip.decompress(page.gzipped()) == page.text()
    assert gzip.decompress(page.gzipped(b"b 2\n")) == page.text(b"b 2\n")
    assert gzip.decompress(page.gzipped()) == page.body
    assert len(page.gzipped()) < 100
