"""What type checkers make of the package and its examples."""

import subprocess
import sys
from pathlib import Path

import kvtide
import pytest
from kvtide import _native

PACKAGE = Path(__file__).parents[1]
EXAMPLES = PACKAGE / "examples"
SOURCES = PACKAGE / "python" / "kvtide"

WRONG = """
import kvtide

reach = kvtide.Reach(1, 2, 3, 4)
sum([reach])  # E: a sum
reach < 5  # E: a number
rank = kvtide.Indexer("m", 4).overlap([1]).ranks[0]
rank.reach.gpu  # E: unknown is not zero
rank.reach = reach  # E: read-only
kvtide.Indexer("m", 4).overlap("text")  # E: no tokens
kvtide.FreshnessLimits(knowledge=["perhaps"])  # E: no such state
kvtide.Client().overlap([1]).rank  # right
"""


def run(*command):
    return subprocess.run([sys.executable, "-m", *map(str, command)], capture_output=True, text=True, cwd=PACKAGE)


@pytest.mark.parametrize("checker", [("mypy", "--strict"), ("pyright", "--pythonpath", sys.executable)], ids=lambda checker: checker[0])
def test_checkers_find_nothing_in_the_package_and_its_examples(checker):
    checked = run(*checker, SOURCES, EXAMPLES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("checker", [("mypy", "--strict", "--no-pretty"), ("pyright", "--pythonpath", sys.executable)], ids=lambda checker: checker[0])
def test_checkers_find_what_is_wrong(checker, tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    checked = run(*checker, file)
    for number, line in enumerate(WRONG.splitlines(), 1):
        assert (f"wrong.py:{number}:" in checked.stdout) == ("# E" in line), f"{line}\n{checked.stdout}"


def test_the_stubs_have_what_there_is():
    checked = run("mypy.stubtest", "kvtide._native", "--ignore-disjoint-bases")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_everything_public_says_what_it_is():
    # `Knowledge` is a list of words.
    public = [getattr(kvtide, name) for name in kvtide.__all__ if name != "Knowledge"]
    public += [_native.RadixTree, _native.OverlapScores]
    for one in public:
        assert one.__doc__, one
        of_ours = isinstance(one, type) and one.__module__.startswith("kvtide") and not issubclass(one, (dict, Exception))
        for name, member in vars(one).items() if of_ours else ():
            if not name.startswith("_"):
                assert member.__doc__, f"{one.__name__}.{name}"
