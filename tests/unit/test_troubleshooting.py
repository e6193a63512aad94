"""What counts as the same text on the page of failures: times and made-up names may differ, what is told may not."""

from __future__ import annotations

import pytest

from tests.support.troubleshooting import normal, part_of_description

SHOWN = """NAME   PREFILL   READY   REASON   AGE
chat   0/1       False   {reason}   {age}
  Last Transition Time:  {time}
  Message: pod chat-mixed-{pod}: {ready} of 1
  Warning  EngineCrashing  {age}   prefleet.dev/operator
"""
USUAL = {
    "reason": "EngineCrashing",
    "age": "24s",
    "time": "2026-11-30T07:16:16Z",
    "pod": "664776d876-m9s4q",
    "ready": "0",
}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        pytest.param({"age": "2m4s (x3 over 12m)"}, True, id="ages"),
        pytest.param({"time": "2027-01-01T00:00:00Z"}, True, id="times"),
        pytest.param({"pod": "7d4b9c6f5d-x2z4w"}, True, id="what pods are called"),
        pytest.param({"reason": "Unschedulable"}, False, id="a reason"),
        pytest.param({"ready": "1"}, False, id="a number"),
    ],
)
def test_what_counts_as_the_same(changed: dict[str, str], same: bool) -> None:
    assert (normal(SHOWN.format(**USUAL)) == normal(SHOWN.format(**USUAL | changed))) is same


DESCRIPTION = """Status:
  Conditions:
    Last Transition Time:  2026-11-30T07:16:15Z
    Type:                  Accepted
    Last Transition Time:  2026-11-30T07:16:16Z
    Type:                  Ready
  Effective:
    Generation:  1
Events:
  Type     Reason          Age   From  Message
  ----     ------          ----  ----  -------
  Normal   FleetCreated    30s   op    The fleet starts.
  Warning  EngineCrashing  21s   op    It ends.
"""


def test_of_a_description_the_conditions_and_warnings_in_question_are_shown() -> None:
    shown = part_of_description(DESCRIPTION, ("Ready",), ("EngineCrashing", "FleetCreated"))
    assert "Ready" in shown
    assert "EngineCrashing" in shown
    assert not {"Accepted", "Effective", "FleetCreated"} & set(shown.replace(":", "").split())
