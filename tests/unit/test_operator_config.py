"""The installation's configuration: what it says, and with which sentence a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefleet_operator.app.config import ConfigError, load_config, parse_config
from prefleet_operator.app.sources import make_sources

GOOD: dict[str, Any] = {"runtimeImage": "prefleet/prefleet:1"}
SOURCE: dict[str, Any] = {"name": "cluster", "type": "Prometheus", "url": "http://prometheus:9090"}


def test_a_small_configuration_gets_defaults() -> None:
    config = parse_config(GOOD)
    assert (config.loop_interval_s, config.namespaces, config.metrics_sources) == (5.0, (), ())
    assert (config.sizing.window_s, config.sizing.fast_window_s) == (600.0, 60.0)


async def test_sources_are_known_by_name_and_pod_scrape_is_always_there() -> None:
    sources = make_sources(parse_config(GOOD | {"metricsSources": [SOURCE]}))
    assert list(sources) == ["PodScrape", "cluster"]
    for source in sources.values():
        await source.close()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(b"runtimeImage: a\nruntimeImage: b\n", "runtimeImage is set twice", id="a setting twice"),
        pytest.param(b"runtimeImage: \xff", "is not YAML: 'utf-8' codec", id="no UTF-8"),
        pytest.param(b"runtimeImage: a\n---\nruntimeImage: b\n", "holds 2 documents: write one", id="two documents"),
        pytest.param(b"", "the configuration is empty", id="nothing"),
    ],
)
def test_a_file_that_is_not_one_configuration_is_refused(tmp_path: Path, text: bytes, sentence: str) -> None:
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=sentence):
        load_config(tmp_path / "config.yaml")


def test_a_url_with_a_password_is_shown_to_no_tenant() -> None:
    """KEDA is told the address of an open source, in an object that a fleet's users read."""
    sources = [SOURCE | {"url": "http://u:secret@h:9090"}, SOURCE | {"name": "open", "url": "http://h:9090/prefix"}]
    assert parse_config(GOOD | {"metricsSources": sources}).open_prometheus == {"open": "http://h:9090/prefix"}


def test_flags_replace_the_namespaces_of_the_file() -> None:
    config = parse_config(GOOD | {"namespaces": ["a"]})
    assert config.with_namespaces(()).namespaces == ("a",)
    assert config.with_namespaces(("b", "c")).namespaces == ("b", "c")


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        pytest.param(None, "the configuration is empty", id="an empty file"),
        pytest.param({}, "runtimeImage: is missing: write it", id="no runtime image"),
        pytest.param(GOOD | {"runtimeImages": "x"}, "runtimeImages: is not a setting", id="a misspelt setting"),
        pytest.param(GOOD | {"loopInterval": "100ms"}, "100ms would flood the API server", id="a busy loop"),
        pytest.param(GOOD | {"loopInterval": "5"}, 'such as "500ms" or "8s"', id="an interval without a unit"),
        pytest.param(
            GOOD | {"sizing": {"window": "1m"}}, "sizing: fastWindow 1m beside window 1m: write", id="windows alike"
        ),
        pytest.param(GOOD | {"sizing": {"fastWindow": "2s"}}, "a fastWindow of 5s or more", id="a window of no scrape"),
        pytest.param(GOOD | {"sizing": {"window": "10"}}, 'such as "500ms" or "8s"', id="a window without a unit"),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE, SOURCE]}, "cluster is defined twice", id="a source defined twice"
        ),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE | {"name": "PodScrape"}]}, "PodScrape is defined twice", id="a taken name"
        ),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE | {"url": "prometheus:9090"}]}, "metricsSources.0.url", id="no scheme"
        ),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE | {"url": "http://u:secret@h:99999"}]},
            "metricsSources.0.url: h:99999 is no address: write",
            id="a port that cannot be",
        ),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE | {"url": "http://[::1"}]}, "[::1 is no address", id="half an address"
        ),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE | {"url": "http://h?tenant=a"}]}, "metricsSources.0.url", id="a query"
        ),
        pytest.param(
            GOOD | {"metricsSources": [SOURCE | {"url": "http://u:p@h", "bearerTokenFile": "/token"}]},
            "metricsSources.0: both a user in url and bearerTokenFile are set",
            id="two credentials",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_fix(raw: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_config(raw)
    assert sentence in str(refusal.value)


def test_a_file_that_is_no_yaml_or_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match=r"config\.yaml: cannot be read \(No such file"):
        load_config(path)
    path.write_text("runtimeImage: [")
    with pytest.raises(ConfigError, match=r"config\.yaml: is not YAML"):
        load_config(path)
