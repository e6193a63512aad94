"""What is said of pods that a change replaces, and of those that wait for an upgrade."""

import pytest
from prefleet_operator.core.differences import Difference
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.restarts import Outdated, Restart, outdated_sentence, restart_events

IMAGE = (Difference("spec.containers[engine].image", "a", "b"),)
ARGS = (Difference("spec.containers[engine].args", ["a"], ["b"]),)


@pytest.mark.parametrize(
    ("restarts", "told"),
    [
        pytest.param([], None, id="nothing is replaced"),
        pytest.param([Restart("prefill", 3, ())], None, id="the template stays"),
        pytest.param([Restart("prefill", 0, ARGS)], None, id="there is no pod that could be replaced"),
        pytest.param(
            [Restart("mixed", 1, ARGS)], "1 pod of mixed for spec.containers[engine].args.", id="one pod of one role"
        ),
        pytest.param(
            [Restart("prefill", 4, (*ARGS, *IMAGE)), Restart("decode", 2, IMAGE), Restart("router", 1, ())],
            "4 pods of prefill for spec.containers[engine].args, spec.containers[engine].image; "
            "2 pods of decode for spec.containers[engine].image.",
            id="each role with its own reason, and none that stays",
        ),
    ],
)
def test_one_event_tells_of_all_roles_that_are_replaced(restarts: list[Restart], told: str | None) -> None:
    events = restart_events(restarts, {})
    assert len(events) == (told is not None)
    for event in events:
        assert event.reason is Reason.RESTART_NEEDED
        assert event.message == f"Pods have to be replaced, as many at once as the role's rollout allows: {told}"


@pytest.mark.parametrize(
    ("leaving", "restarts", "told"),
    [
        pytest.param({"mixed": 0}, [], None, id="a role without pods"),
        pytest.param(
            {"mixed": 2}, [], "2 pods of mixed go, which the spec has no more.", id="a role that is taken out"
        ),
        pytest.param(
            {"prefill": 1, "decode": 2},
            [Restart("router", 1, ARGS)],
            "Pods have to be replaced, as many at once as the role's rollout allows: 1 pod of router for "
            "spec.containers[engine].args. 1 pod of prefill and 2 pods of decode go, which the spec has no more.",
            id="beside one that is replaced",
        ),
    ],
)
def test_the_pods_of_a_role_that_is_taken_out_are_told_of_too(
    leaving: dict[str, int], restarts: list[Restart], told: str | None
) -> None:
    assert [event.message for event in restart_events(restarts, leaving)] == ([told] if told else [])


@pytest.mark.parametrize(
    ("outdated", "begins"),
    [
        pytest.param([], "", id="nothing is known of any role"),
        pytest.param([Outdated("mixed", "1.0", ())], "", id="the present release would render the same"),
        pytest.param(
            [Outdated("prefill", "1.0", IMAGE), Outdated("decode", "1.0", IMAGE), Outdated("router", "2.0", ())],
            "The pods of prefill and decode stay as release 1.0 rendered them; release 2.0 as it is installed would "
            "change spec.containers[engine].image, ",
            id="roles that wait are named, and what would change",
        ),
    ],
)
def test_pods_that_wait_for_an_upgrade_are_told_of(outdated: list[Outdated], begins: str) -> None:
    sentence = outdated_sentence(outdated, "2.0", "prefleet.dev/upgrade")
    assert sentence.startswith(begins)
    assert bool(sentence) is bool(begins)
    assert not sentence or "the annotation prefleet.dev/upgrade of this policy" in sentence
