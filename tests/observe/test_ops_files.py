"""The files that are shipped for operations: they parse, and name only what exists."""

import configparser
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.cli.ops import OpsFile, ops_file
from perdure.engine.settings import WorkerSettings
from perdure.jobs.gauges import Backlog, StoreGauges, WorkerGauge
from perdure.observe.prometheus import COUNTED, Metrics
from tests.support.cli import ROOT, perdure

WAITS = Backlog(count=1, oldest=1.0)
FOUND = StoreGauges(
    now=0.0,
    states={"PENDING": 1},
    queues={"default": WAITS},
    stuck=0,
    approvals=WAITS,
    in_doubt=WAITS,
    notices=WAITS,
    schedule_lag=0.0,
    workers=(WorkerGauge(name="here:1", silent_for=1.0, running=0, concurrency=1),),
)


class FullStore:
    async def gauges(self) -> StoreGauges:
        return FOUND


async def exported() -> set[str]:
    """Return the names of all series that a worker can export."""

    async def store() -> Any:
        return FullStore()

    text = (await Metrics().text(store)).decode()
    gauges = set(re.findall(r"^# TYPE (\w+) gauge$", text, re.MULTILINE))
    names: set[str] = set(gauges)
    for each in COUNTED:
        if each.buckets:
            names |= {f"{each.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(each.name)
    return {name for name in names if not name.endswith("_created")}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ops_file(OpsFile.PROMETHEUS))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    panels = json.loads(ops_file(OpsFile.GRAFANA))["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    triggers = [
        trigger["metadata"]["query"]
        for document in yaml.safe_load_all(ops_file(OpsFile.KUBERNETES))
        for trigger in document["spec"].get("triggers", [])
    ]
    return [*shown, *triggers, *[rule["expr"] for rule in rules()]]


async def test_rules_dashboard_and_scaling_name_only_metrics_that_exist() -> None:
    known = await exported()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in expressions():
        assert set(re.findall(r"\bperdure_\w+", expression)) <= known, expression
        assert set(re.findall(r"\bperdure:[\w:]+", expression)) <= recorded, expression


async def test_the_documentation_lists_every_metric_and_explains_every_alert() -> None:
    page = (ROOT / "docs/jobs/metrics.md").read_text("utf-8")
    base = {re.sub(r"_(bucket|sum|count)$", "", name) for name in await exported()}
    assert not {name for name in base if f"`{name}`" not in page}
    for rule in rules():
        if "alert" in rule:
            assert f"### {rule['alert']}\n" in page
            assert rule["annotations"]["runbook"].endswith(f"#{rule['alert'].lower()}")
        else:
            assert f"`{rule['record']}`" in page


def test_the_thresholds_are_those_of_the_seven_measures() -> None:
    by_name = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert "> 2 * perdure:job_duration_seconds:p95_usual" in by_name["PerdureJobSlow"]["expr"]
    assert "> 0.3" in by_name["PerdureStepFailing"]["expr"]
    assert by_name["PerdureStepUnstable"]["expr"].endswith("> 2")
    assert by_name["PerdureCheckpointLarge"]["expr"].endswith("> 10240")
    for name in ("PerdureJobStuck", "PerdureCompensationFailed"):  # at once
        assert by_name[name]["expr"].endswith("> 0")
        assert "for" not in by_name[name]


def test_one_slow_job_of_hours_is_enough_for_its_alert() -> None:
    by_name = {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    of_a_day = by_name["PerdureJobSlow"].partition(") or (")[2]
    assert "p95_day > 2 * perdure:job_duration_seconds:p95_day_usual" in of_a_day
    assert "count" not in of_a_day
    for name in ("p95", "p95_day"):  # an hour or a day without an end must not become NaN
        assert by_name[f"perdure:job_duration_seconds:{name}"].rstrip().endswith(") > 0")


def test_twice_as_long_is_another_bucket_from_a_quarter_of_an_hour_to_two_days() -> None:
    (found,) = [each for each in COUNTED if each.name == "perdure_job_duration_seconds"]
    long = [each for each in found.buckets if each >= 900]
    assert long[-1] == 2 * 86400
    assert all(later <= 2 * each for each, later in itertools.pairwise(long))


def test_the_dashboard_chooses_its_data_source_and_has_a_row_for_each_audience() -> None:
    board = json.loads(ops_file(OpsFile.GRAFANA))
    assert [each["type"] for each in board["templating"]["list"]] == ["datasource"]
    rows = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
    assert rows == ["Operator", "Fleet", "Approvals", "Cost"]
    others = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in others} == {"${datasource}"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_process_managers_wait_longer_than_a_worker_drains() -> None:
    drain = WorkerSettings().drain_grace
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read_string(ops_file(OpsFile.SYSTEMD))
    assert int(unit["Service"]["timeoutstopsec"]) >= drain + 20
    deployment, budget, scaling = yaml.safe_load_all(ops_file(OpsFile.KUBERNETES))
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= drain + 20 + 5
    (worker,) = pod["containers"]
    assert worker["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert worker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "preStop" in worker["lifecycle"]
    assert budget["kind"] == "PodDisruptionBudget"
    assert scaling["kind"] == "ScaledObject"


@pytest.mark.parametrize("what", list(OpsFile))
def test_each_file_is_printed(what: OpsFile, tmp_path: Path) -> None:
    printed = perdure(tmp_path, "ops", "export", what.value)
    assert (printed.returncode, printed.stdout) == (0, ops_file(what))


promtool = shutil.which("promtool")

ALERTS_TEST = """
rule_files: [prometheus.yaml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - { series: 'perdure_jobs_stuck{instance="a"}', values: '0x5 1x80' }
      - { series: 'perdure_jobs_stuck{instance="b"}', values: '0x5 1x20' }
      - { series: 'perdure_compensations_total{outcome="failed"}', values: '0x5 1x20' }
      - { series: 'perdure_step_attempts_total{step="fetch",outcome="failed"}', values: '0+4x60' }
      - series: 'perdure_step_attempts_total{step="fetch",outcome="succeeded"}'
        values: '0+6x60'
    alert_rule_test:
      - { eval_time: 1m, alertname: PerdureJobStuck, exp_alerts: [] }
      - { eval_time: 1m, alertname: PerdureCompensationFailed, exp_alerts: [] }
    promql_expr_test:
      - expr: perdure:jobs_stuck:count
        eval_time: 4m
        exp_samples: [{ labels: 'perdure:jobs_stuck:count', value: 1 }]
      - expr: count by (alertname) (ALERTS{alertstate="firing",alertname="PerdureJobStuck"})
        eval_time: 40m
        exp_samples: [{ labels: '{alertname="PerdureJobStuck"}', value: 1 }]
      - expr: count by (alertname) (ALERTS{alertstate="firing",severity="critical"})
        eval_time: 4m
        exp_samples:
          - { labels: '{alertname="PerdureJobStuck"}', value: 1 }
          - { labels: '{alertname="PerdureCompensationFailed"}', value: 1 }
      - expr: count by (alertname, step) (ALERTS{alertstate="firing",severity="warning"})
        eval_time: 25m
        exp_samples:
          - { labels: '{alertname="PerdureStepFailing",step="fetch"}', value: 1 }
"""


@pytest.mark.skipif(promtool is None, reason="promtool (of Prometheus) is not installed")
@pytest.mark.once
def test_promtool_accepts_the_rules_and_they_fire(tmp_path: Path) -> None:
    (tmp_path / "prometheus.yaml").write_text(ops_file(OpsFile.PROMETHEUS), "utf-8")
    (tmp_path / "test.yaml").write_text(ALERTS_TEST, "utf-8")
    for words in (("check", "rules", "prometheus.yaml"), ("test", "rules", "test.yaml")):
        done = subprocess.run(
            [str(promtool), *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
