"""What operators are given in docs/deploy is of the right form, and names metrics, flags and alerts that there are."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from conftest import KVTIDE

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
METRICS = set(re.findall(r"`(kvtide_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))


def named_metrics(text):
    """Metrics in expressions, a summary's parts as the summary."""
    return {re.sub(r"_seconds_(count|sum)$", "_seconds", name) for name in re.findall(r"\bkvtide_\w+", text)}


def documents():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_alerts_name_metrics_that_there_are_and_each_is_explained():
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert named_metrics(rule["expr"]) <= METRICS, rule["alert"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"} and rule["annotations"]["summary"]
    explained = re.findall(r"^\| (Kvtide\w+) \|", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in rules] == explained


def test_the_dashboard_shows_metrics_that_there_are():
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            named = named_metrics(target["expr"])
            assert named and named <= METRICS, target["expr"]
            shown |= named
    assert len(shown) > 15


def test_the_manifests_fit_together(tmp_path):
    by_kind = {}
    for document in documents():
        assert {"apiVersion", "kind", "metadata"} <= set(document)
        by_kind.setdefault(document["kind"], []).append(document)
    (secret,), (config,), (fleet,) = by_kind["Secret"], by_kind["ConfigMap"], by_kind["StatefulSet"]
    pod = fleet["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    for service in by_kind["Service"]:
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert fleet["spec"]["serviceName"] in [service["metadata"]["name"] for service in by_kind["Service"]]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in fleet["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 30

    # The file is one that kvtide takes, once the paths of the pod are there.
    text = config["data"]["kvtide.toml"]
    assert tomllib.loads(text)["server"]["tokens"].endswith("/tokens")
    for name in secret["stringData"]:
        assert f"/etc/kvtide/secret/{name}" in text
        (tmp_path / name).write_text(secret["stringData"][name])
    file = tmp_path / "kvtide.toml"
    file.write_text(text.replace("/etc/kvtide/secret", str(tmp_path)))
    checked = subprocess.run([KVTIDE, "check-config", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["kvtide.service", "Dockerfile"])
def test_commands_are_those_that_there_are(name):
    text = (DEPLOY / name).read_text()
    commands = set(re.findall(r"kvtide (serve|check-config)\b|\[\"(serve)\"\]", text))
    assert commands
    for command in {first or second for first, second in commands}:
        assert subprocess.run([KVTIDE, command, "--help"], capture_output=True, check=False).returncode == 0
