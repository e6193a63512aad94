"""What the test equipment that stands for prometheus-adapter asks and answers (tests/support/external_metrics.py)."""

from typing import Any

import pytest

from tests.support.external_metrics import ROOT, answer, promql

PATH = f"{ROOT}/namespaces/serving/prefleet_desired_replicas"


@pytest.mark.parametrize(
    ("selector", "query"),
    [
        pytest.param("", 'wish{namespace="serving"}', id="no selector"),
        pytest.param("policy=chat,role=prefill", 'wish{namespace="serving",policy="chat",role="prefill"}', id="labels"),
        pytest.param("namespace=serving", 'wish{namespace="serving"}', id="the namespace once more"),
        pytest.param('policy=a"b', 'wish{namespace="serving",policy="a\\"b"}', id="a quote"),
    ],
)
def test_a_request_is_a_selector_of_prometheus(selector: str, query: str) -> None:
    assert promql("wish", "serving", selector) == query


@pytest.mark.parametrize("selector", ["policy", "policy!=chat", "policy==chat", "policy in (a)"])
def test_other_selectors_are_refused(selector: str) -> None:
    with pytest.raises(ValueError, match="is no list of label=value"):
        promql("wish", "serving", selector)


def test_samples_are_answered_in_thousandths_with_their_labels_and_time() -> None:
    asked: list[str] = []

    def ask(query: str) -> list[dict[str, Any]]:
        asked.append(query)
        return [{"metric": {"__name__": "prefleet_desired_replicas", "role": "prefill"}, "value": [60.5, "2.5"]}]

    body = answer(f"{PATH}?labelSelector=role%3Dprefill", ask)
    assert asked == ['prefleet_desired_replicas{namespace="serving",role="prefill"}']
    assert body is not None
    assert body["items"] == [
        {
            "metricName": "prefleet_desired_replicas",
            "metricLabels": {"role": "prefill"},
            "timestamp": "1970-01-01T00:01:00Z",
            "value": "2500m",
        }
    ]


def test_no_sample_is_an_empty_list_and_no_zero() -> None:
    body = answer(PATH, lambda _: [])
    assert body is not None
    assert body["items"] == []


def test_discovery_is_answered_and_other_paths_are_not() -> None:
    discovery = answer(ROOT, lambda _: pytest.fail("nothing is to be asked"))
    assert discovery is not None
    assert discovery["kind"] == "APIResourceList"
    assert answer(f"{ROOT}/pods", lambda _: []) is None
