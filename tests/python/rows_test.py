"""The table of acceptance rows in tests/README.md names tests that exist, and names every row that ctest is to hold."""

import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROWS = [1, 4, 6, 7, 8, 10, 12, 14, 15, 21, 22, 23, 24, 30, 31, 32, 33, 34, 35, 38, 39, 40]


def table() -> dict[int, list[tuple[str, str]]]:
    rows = {}
    for line in (TESTS / "README.md").read_text().splitlines():
        if cells := re.fullmatch(r"\| (\d+) \| .* \| (.*) \|", line):
            rows[int(cells[1])] = re.findall(r"`(\S+)` (.*?)(?:; (?=`)|$)", cells[2])
    return rows


def test_every_row_is_there():
    assert list(table()) == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_named_tests_exist(row):
    tests = table()[row]
    assert tests
    for file, name in tests:
        text = (TESTS / file).read_text()
        # A C++ name may be split over lines as a literal never is: it stands in quotes.
        assert (f"def {name}(" if file.endswith(".py") else f'"{name}"') in text, f"{file}: {name}"
