"""deploy/prometheus: promtool accepts it, and every alert is tested and fires when it should."""

import re
import subprocess

import yaml

from conftest import DEPLOY

FOLDER = DEPLOY / "prometheus"


def alerts():
    groups = yaml.safe_load((FOLDER / "alerts.rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check(promtool, *arguments):
    result = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_configurations_and_rules_are_good(promtool):
    check(promtool, "check", "config", FOLDER / "prometheus.yaml", FOLDER / "compose.yaml")
    check(promtool, "check", "rules", *sorted(FOLDER.glob("*.rules.yaml")))


def test_every_alert_fires_when_it_should(promtool):
    check(promtool, "test", "rules", FOLDER / "rules.test.yaml")


def test_no_alert_is_untested():
    tested = {"fires": set(), "does not": set()}
    for test in yaml.safe_load((FOLDER / "rules.test.yaml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            tested["fires" if case.get("exp_alerts") else "does not"].add(case["alertname"])
    names = {rule["alert"] for rule in alerts()}
    assert tested == {"fires": names, "does not": names}


def test_every_alert_says_how_bad_and_what_to_do():
    for rule in alerts():
        assert rule["labels"]["severity"] in {"page", "warning"}, rule["alert"]
        assert {"summary", "action"} <= rule["annotations"].keys(), rule["alert"]


def test_the_rules_read_metrics_that_there_are(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    families = set(re.findall(r"^# TYPE (\S+)", daemon.get("/metrics").text, re.M))
    used = set()
    for path in FOLDER.glob("*.rules.yaml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                used |= set(re.findall(r"\b(?:lockstep|process)_\w+", rule["expr"]))
    assert len(used) > 15
    missing = {name for name in used
               if name not in families and re.sub("_(bucket|sum|count)$", "", name) not in families}
    assert not missing
