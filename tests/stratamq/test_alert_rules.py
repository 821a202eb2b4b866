"""Rules for Prometheus: promtool reads them, each names families that pages have, and they fire and end."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from admin.alerts import ALARMS
from tests.stratamq.alert_cases import CASES, cases_texts

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "monitoring" / "alerts.yml"
PROMTOOL = shutil.which("promtool") or ""


def test_each_rule_names_families_that_the_product_has() -> None:
    sources = [
        path.read_text()
        for room in ("conf", "wire", "membership", "router", "storage", "edge")
        for path in (ROOT / room).rglob("*.py")
    ]
    for alarm in ALARMS:
        for name in re.findall(r"stratamq_(\w+)", alarm.expression):
            family = name.removesuffix("_bucket")
            assert any(f'"{family}"' in text for text in sources), family


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not here: Debian's package prometheus")
def test_promtool_takes_the_rules_and_they_fire(tmp_path: Path) -> None:
    """Not before their time, and no more when the condition has ended."""
    assert subprocess.run([PROMTOOL, "check", "rules", str(RULES)], check=False, capture_output=True).returncode == 0
    for number, text in enumerate(cases_texts(str(RULES))):
        cases = tmp_path / f"cases-{number}.yml"
        cases.write_text(text)
        run = subprocess.run([PROMTOOL, "test", "rules", str(cases)], check=False, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


def test_each_rule_has_a_case() -> None:
    assert CASES.keys() == {alarm.name for alarm in ALARMS}


def test_each_alarm_is_shown_and_a_rule() -> None:
    """One table: three of it were one without the other."""
    assert all(alarm.expression and callable(alarm.find) for alarm in ALARMS)
