"""Tests of the workflow file for continuous integration."""

import os
import re

import yaml

from deploy_files import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_pin_actions_and_have_no_rights():
    assert [path.name for path in WORKFLOWS] == ["ci.yml"]
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert "secrets." not in text
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}
        for name, job in workflow["jobs"].items():
            assert "permissions" not in job and job["timeout-minutes"] <= 180, name
            for step in job["steps"]:
                used = step.get("uses")
                assert used is None or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", used), used


def test_the_workflow_runs_the_commands_of_the_readme_on_every_suite():
    jobs = yaml.safe_load(WORKFLOWS[0].read_text(encoding="utf-8"))["jobs"]
    test = jobs["test"]
    assert test["strategy"]["matrix"]["image"] == ["debian:12", "debian:13"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {"tools/demo.sh", "tools/test.sh", "tools/try_debian.sh trixie"} <= set(commands)
    for command in commands:
        for script in re.findall(r"\btools/\S+\.sh", command):
            assert os.access(ROOT / script, os.X_OK), script
