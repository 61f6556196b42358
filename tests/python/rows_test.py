"""Tests that the tables of tests/README.md name existing tests.

The first table must have exactly the row numbers in ROWS.
"""

import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROWS = [1, 4, 6, 7, 8, 10, 12, 14, 15, 21, 22, 23, 24, 30, 31, 32, 33, 34, 35, 38, 39, 40]


def named_tests(cell: str) -> list[tuple[str, str]]:
    return re.findall(r"`(\S+)` (.*?)(?:; (?=`)|$)", cell)


def table() -> dict[int, list[tuple[str, str]]]:
    rows = {}
    for line in (TESTS / "README.md").read_text().splitlines():
        if cells := re.fullmatch(r"\| (\d+) \| .* \| (.*) \|", line):
            rows[int(cells[1])] = named_tests(cells[2])
    return rows


def findings() -> dict[str, list[tuple[str, str]]]:
    section = (TESTS / "README.md").read_text().split("## Findings of a manual attack")[1]
    lines = [
        line
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| finding |")
    ]
    return {
        line.split(" | ")[0][2:]: named_tests(line.rsplit(" | ", 1)[1].removesuffix(" |"))
        for line in lines
    }


def assert_exist(tests: list[tuple[str, str]]) -> None:
    assert tests
    for file, name in tests:
        text = (TESTS / file).read_text()
        # A C++ test name is a string literal on one line, so it is searched with its quotes.
        assert (f"def {name}(" if file.endswith(".py") else f'"{name}"') in text, f"{file}: {name}"


def test_every_row_is_there():
    assert list(table()) == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_named_tests_exist(row):
    assert_exist(table()[row])


@pytest.mark.parametrize("finding", findings())
def test_named_tests_of_findings_exist(finding):
    assert_exist(findings()[finding])
