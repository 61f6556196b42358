"""Checks the Prometheus files with promtool, the metric names in use, and a real scrape."""

import contextlib
import json
import re
import shutil
import urllib.parse
import urllib.request

import pytest

from deploy_files import DEPLOY, listening, run, text
from server_process import eventually

PROMETHEUS = DEPLOY / "prometheus"
USERS = [
    "prometheus/rules.yml",
    "grafana/dashboards/quintet.json",
    "kubernetes/autoscaling/hpa.yaml",
    "kubernetes/autoscaling/scaledobject.yaml",
]


# Metrics that a server without a GPU does not export.
ONLY_ON_A_GPU = {
    "quintet_gpu_utilization_ratio",
    "quintet_gpu_memory_used_bytes",
    "quintet_gpu_memory_total_bytes",
}


def exported_names(server) -> set[str]:
    return {sample.name for sample in server.samples()}


def used_names(content: str) -> set[str]:
    return set(re.findall(r"\bquintet_[a-z0-9_]+", content))


def test_configuration_and_rules():
    run("promtool", "check", "config", PROMETHEUS / "prometheus.yml")
    run("promtool", "check", "rules", PROMETHEUS / "rules.yml")


def test_alerts_fire_when_they_should():
    run("promtool", "test", "rules", "rules_test.yml", cwd=PROMETHEUS)


def test_every_alert_has_a_test():
    alerts = re.findall(r"alert: (\w+)", text("prometheus/rules.yml"))
    assert alerts
    for alert in alerts:
        assert f"alertname: {alert}" in text("prometheus/rules_test.yml")


@pytest.mark.parametrize("path", USERS)
def test_names_are_exported(server, path):
    names = used_names(text(path))
    assert names
    assert names - ONLY_ON_A_GPU <= exported_names(server)
    documented = (DEPLOY.parent / "server" / "README.md").read_text(encoding="utf-8")
    for name in names & ONLY_ON_A_GPU:
        assert f"`{name.removeprefix('quintet_')}`" in documented


def test_metrics_are_clean(server):
    run("promtool", "check", "metrics", input=server.get("/metrics")[1])


def test_dashboard():
    dashboard = json.loads(text("grafana/dashboards/quintet.json"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for box in boxes
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels:
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}
            assert target["datasource"]["uid"] == "${datasource}"


def test_dashboard_expressions_parse(tmp_path):
    """Writes each expression as a rule: promtool rejects a rule whose expression is not PromQL."""
    dashboard = json.loads(text("grafana/dashboards/quintet.json"))
    rules = [
        {"record": f"panel:{i}", "expr": target["expr"].replace("$__rate_interval", "1m")}
        for i, target in enumerate(
            t for panel in dashboard["panels"] for t in panel.get("targets", [])
        )
    ]
    (tmp_path / "rules.yml").write_text(
        json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    )
    assert f"{len(rules)} rules found" in run("promtool", "check", "rules", tmp_path / "rules.yml")


def query(port: int, expression: str) -> list[dict]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]["result"]
    return []


def values(port: int, expression: str) -> list[float]:
    return [float(result["value"][1]) for result in query(port, expression)]


def prometheus(server, folder):
    """Runs Prometheus with our configuration for one server, with intervals of 1 s."""
    shutil.copy(PROMETHEUS / "rules.yml", folder)
    config = text("prometheus/prometheus.yml").replace(
        "quintet:9464", f"127.0.0.1:{server.http_port}"
    )
    assert config.count("15s") == 2 and f":{server.http_port}" in config
    (folder / "prometheus.yml").write_text(config.replace("15s", "1s"))
    return listening(
        1,
        lambda port: [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        folder / "log",
    )


def test_scrape(server, tmp_path):
    with server.client() as client:
        client.generate("phoneme")
    with prometheus(server, tmp_path) as (port,):
        assert eventually(lambda: values(port, 'up{job="quintet"}') == [1.0], 60)
        assert values(port, "quintet_ready") == [1.0]
        assert eventually(lambda: sum(values(port, "quintet_requests_accepted_total")) >= 1, 60)
        # The rules are evaluated, and no alert fires on an idle server.
        assert eventually(lambda: len(query(port, "quintet:requests_finished:rate5m")) > 0, 60)
        assert query(port, "ALERTS") == []
