"""Rules for Prometheus: promtool reads them, each names families that pages have, and they fire and end."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from admin.alarms import ALARMS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "monitoring" / "alerts.yml"
PROMTOOL = shutil.which("promtool") or ""
CASES = """
rule_files: [{rules}]
evaluation_interval: 1s
tests:
  - interval: 1s
    input_series:
      - {{series: 'stratamq_partitions_without_primary{{instance="r1"}}', values: '0x9 3x9 0x9'}}
      - {{series: 'stratamq_raft_leader{{instance="r1"}}', values: '1x40'}}
    alert_rule_test:
      - {{eval_time: 10s, alertname: partition_without_primary, exp_alerts: []}}
      - eval_time: 15s
        alertname: partition_without_primary
        exp_alerts:
          - exp_labels: {{severity: critical}}
            exp_annotations: {{summary: "{summary}", description: "{description}"}}
      - {{eval_time: 25s, alertname: partition_without_primary, exp_alerts: []}}
      - {{eval_time: 25s, alertname: no_leader, exp_alerts: []}}
"""


def test_each_rule_names_families_that_the_product_has() -> None:
    sources = [
        path.read_text()
        for room in ("conf", "wire", "router", "storage", "edge")
        for path in (ROOT / room).rglob("*.py")
    ]
    for alarm in ALARMS:
        for family in re.findall(r"stratamq_(\w+)", alarm.expression):
            assert any(f'"{family}"' in text for text in sources), family


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not here: Debian's package prometheus")
def test_promtool_takes_the_rules_and_they_fire(tmp_path: Path) -> None:
    """Not before their time, and no more when the condition has ended."""
    assert subprocess.run([PROMTOOL, "check", "rules", str(RULES)], check=False, capture_output=True).returncode == 0
    alarm = next(alarm for alarm in ALARMS if alarm.name == "partition_without_primary")
    cases = tmp_path / "cases.yml"
    cases.write_text(CASES.format(rules=RULES, summary=alarm.sentence, description=alarm.do))
    run = subprocess.run([PROMTOOL, "test", "rules", str(cases)], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
