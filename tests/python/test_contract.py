"""Requests made from the contract: whatever they are, the service answers as the contract says."""

import hypothesis
import pytest
import schemathesis
from conftest import Kvtide


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    config = tmp_path_factory.mktemp("contract") / "kvtide.toml"
    config.write_text('[[stream]]\nname = "engine"\nworker_id = 7\nmodel = "m"\nblock_size = 4\n')
    kvtide = Kvtide("--config", str(config), "--engines", "8")
    yield kvtide
    assert kvtide.child.poll() is None, "it is still there"
    kvtide.stop()


@pytest.fixture(scope="session")
def contract(service):
    return schemathesis.openapi.from_url(f"{service.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("contract")


@schema.parametrize()
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
def test_every_answer_is_as_the_contract_says(case):
    case.call_and_validate()
