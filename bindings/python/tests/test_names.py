"""The names that the package has, with httpx and without it."""

import subprocess
import sys

import kvtide
import pytest

NO_HTTPX = """
import sys
sys.modules["httpx"] = None  # as if it were not installed
import kvtide
from kvtide import *
assert Client is kvtide.Client
assert not hasattr(kvtide, "AsyncClient")
try:
    kvtide.AsyncClient
except AttributeError as error:
    assert "kvtide[async]" in str(error) and isinstance(error.__cause__, ImportError), error
else:
    raise AssertionError("it is there")
try:
    kvtide.nothing
except AttributeError as error:
    assert "nothing" in str(error)
"""


def test_the_package_needs_no_httpx():
    subprocess.run([sys.executable, "-c", NO_HTTPX], check=True)


def test_all_names_can_be_imported_at_once():
    names = {}
    exec("from kvtide import *", names)
    assert set(kvtide.__all__) <= names.keys()


SEEN = """
import kvtide

async def ask() -> kvtide.Overlap:
    async with kvtide.AsyncClient() as client:
        return await client.overlap([1])

kvtide.AsyncClient().nothing  # E: no such method
"""


@pytest.mark.parametrize("checker", [("mypy", "--strict", "--no-pretty"), ("pyright", "--pythonpath", sys.executable)], ids=lambda checker: checker[0])
def test_checkers_see_what_is_in_no_list(checker, tmp_path):
    file = tmp_path / "seen.py"
    file.write_text(SEEN)
    checked = subprocess.run([sys.executable, "-m", *checker, file], capture_output=True, text=True)
    for number, line in enumerate(SEEN.splitlines(), 1):
        assert (f"seen.py:{number}:" in checked.stdout) == ("# E" in line), f"{line}\n{checked.stdout}"
