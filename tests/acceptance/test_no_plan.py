"""No plan configured, a plan file that is missing, and one that was removed later."""

from __future__ import annotations

import signal

from tests.acceptance.agent_home import Home

PHASE = 'nodeagent_phase{phase="%s"} 1'


def test_a_plan_file_that_is_not_there(home: Home) -> None:
    """It is a problem, and the node has no plan; its remedy, followed once, ends it. When the file
    goes away the last good plan stays in force, and that is a problem again.
    """
    home.start()
    home.until(lambda: home.status().get("phase") == "NoPlan")
    status = home.status()
    [problem] = status["problems"]
    assert problem["code"] == status["headline"]["code"] == "SourceMissing"
    assert problem["message"] == f"the plan file {home.plan} does not exist"
    assert f"write a plan to {home.plan} (`nodeagent export`" in problem["remedy"]
    assert status["headline"]["severity"] == "warning"
    assert "digest" not in status
    metrics = home.text("/metrics")
    assert PHASE % "NoPlan" in metrics
    assert "nodeagent_plan_applied" not in metrics

    home.plan.write_text(home.run("export", "--state", str(home.state)).stdout)
    home.until(lambda: home.status().get("phase") == "InSync")
    assert home.status()["problems"] == []
    assert "nodeagent_plan_applied 1" in home.text("/metrics")

    home.plan.unlink()
    home.until(lambda: home.status()["problems"])
    status = home.status()
    [problem] = status["problems"]
    assert (status["phase"], problem["code"]) == ("InSync", "SourceMissing")
    assert problem["message"].endswith("does not exist; the last good plan stays in force")
    home.stop(signal.SIGTERM)


def test_the_command_shows_it(home: Home) -> None:
    """For people: the phase, the path and what to do."""
    home.start()
    home.until(lambda: home.status().get("phase") == "NoPlan")
    page = home.run("status").stdout
    assert "NoPlan" in page
    assert f"write a plan to {home.plan}" in page
