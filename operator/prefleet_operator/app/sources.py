"""The metrics sources of the installation, by the names that policies use."""

from __future__ import annotations

from prefleet_operator.adapters.metrics_source import MetricsSource
from prefleet_operator.adapters.podscrape import PodScrape
from prefleet_operator.adapters.prometheus import PrometheusSource
from prefleet_operator.adapters.role_load import Windows
from prefleet_operator.api import POD_SCRAPE
from prefleet_operator.app.config import OperatorConfig


def make_sources(config: OperatorConfig) -> dict[str, MetricsSource]:
    """PodScrape, and what the installer has defined."""
    windows = Windows(config.sizing.window_s, config.sizing.fast_window_s)
    sources: dict[str, MetricsSource] = {POD_SCRAPE: PodScrape(windows=windows)}
    for source in config.metrics_sources:
        sources[source.name] = PrometheusSource(
            source.name, source.url, source.bearer_token_file, source.ca_file, windows=windows
        )
    return sources
