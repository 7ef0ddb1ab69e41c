"""Requests made from the contract: whatever they are, the service answers as the contract says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KVTIDE, Kvtide

SCHEMATHESIS = Path(sys.executable).parent / "schemathesis"
# A prompt of digits that are too many, a store whose tokens do not fill its blocks: a schema cannot say all that cannot be.
UNSAID = "positive_data_acceptance"


@pytest.mark.timeout(300)
def test_every_answer_is_as_the_contract_says(tmp_path):
    made = subprocess.run(
        [KVTIDE, "token", "new", "--roles", "admin", "--tenants", "*", "--json"], capture_output=True, check=True
    )
    admin = json.loads(made.stdout)
    (tmp_path / "tokens").write_text(admin["line"])
    (tmp_path / "kvtide.toml").write_text(
        '[[stream]]\nname = "engine"\nworker_id = 7\nmodel = "m"\nblock_size = 4\n'
    )
    kvtide = Kvtide("--config", str(tmp_path / "kvtide.toml"), "--tokens", str(tmp_path / "tokens"), "--engines", "8")
    try:
        ask_everything(kvtide, admin["token"], tmp_path)
    finally:
        kvtide.stop()


def ask_everything(kvtide, token, folder):
    contract = kvtide.ask("/openapi.json")
    # It makes JSON alone; msgpack and raw messages are asked in other tests.
    for operation in (operation for path in contract["paths"].values() for operation in path.values()):
        content = operation.get("requestBody", {}).get("content", {})
        for media_type in [each for each in content if each != "application/json"]:
            del content[media_type]
    (folder / "openapi.json").write_text(json.dumps(contract))
    ran = subprocess.run(
        [
            *(SCHEMATHESIS, "run", folder / "openapi.json", "--url", kvtide.url, "--seed", "1"),
            *("--max-examples", "40", "--exclude-checks", UNSAID),
            *("--header", f"Authorization: Bearer {token}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert kvtide.child.poll() is None, "it is still there"
