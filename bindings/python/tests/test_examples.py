"""Whether the examples do what they say."""

import re
import subprocess
import sys
from pathlib import Path

from engine import Engine

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(example, *arguments):
    command = [sys.executable, EXAMPLES / example, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_prompts_are_routed():
    assert run("route_batch.py").count("tokens on its GPU") == 8


def test_reach_and_lag_are_plotted(tmp_path):
    image = tmp_path / "plot.png"
    assert "of 3 workers" in run("plot_reach_and_lag.py", "--seconds", 1.5, "--to", image)
    assert image.read_bytes().startswith(b"\x89PNG")


def test_an_engine_is_followed_and_asked_for_what_was_missed():
    """Of a prompt of 6 blocks and then 12 the eighth's batch is lost, so that the ninth's shows it."""
    engine = Engine(block_size=32, lost=[7])
    try:
        where = ["--http", engine.url, "--events", engine.events, "--replay", engine.replay]
        lines = run("follow_vllm.py", *where).splitlines()
    finally:
        engine.stop()
    found = [re.fullmatch(r"(\d+) tokens: index (\w+) \((\w+), lag .*\), engine (\d+)", line).groups() for line in lines]
    assert found[0] in {("200", "unknown", "unknown", "0"), ("200", "0", "complete", "0")}
    assert found[1:] == [("400", "192", "complete", "192"), ("400", "384", "complete", "384")]
    assert engine.asked_from == [0, 7], "at the start, and where a batch was missing"
