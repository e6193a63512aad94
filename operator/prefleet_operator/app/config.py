"""The installation's configuration: one YAML file that the Helm chart mounts.

It holds what an installer decides and a tenant must not: where metrics come from and with which credentials,
which runtime image fleets get by default, and which namespaces are served. It is read once at start; the chart
restarts the operator when it changes. Every fault is one sentence with the field's name and the fix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from prefleet_operator.api import POD_SCRAPE, Model, YamlError, parse_duration, parse_yaml

MIN_LOOP_INTERVAL_S = 1.0
MIN_WINDOW_S = 5.0


class ConfigError(ValueError):
    """A configuration that must not run; the message says which field and what to write."""


class MetricsSource(Model):
    """One place that fleets may name in `spec.metricsSource`. The token file is re-read, since tokens rotate."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*$")]
    type: Literal["Prometheus"]
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$")]
    bearer_token_file: Annotated[str, Field(pattern="^/")] | None = None
    ca_file: Annotated[str, Field(pattern="^/")] | None = None

    @field_validator("url")
    @classmethod
    def _has_a_host_and_a_port_that_can_be(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            possible = bool(parts.hostname) and parts.port != 0
        except ValueError:
            possible = False
        if not possible:
            raise ValueError(f"{value.rpartition('@')[2]} is no address: write one such as http://prometheus:9090")
        return value

    @model_validator(mode="after")
    def _has_one_credential(self) -> Self:
        if self.bearer_token_file is not None and self._names_a_user:
            raise ValueError("both a user in url and bearerTokenFile are set: write one of the two")
        return self

    @property
    def _names_a_user(self) -> bool:
        return "@" in urlsplit(self.url).netloc

    @property
    def open(self) -> bool:
        """Whether anybody who reaches it is answered, without credentials and without an authority of its own."""
        return self.bearer_token_file is None and self.ca_file is None and not self._names_a_user


class SizingWindows(Model):
    """What autoscaling takes rates over. A load that falls is seen when the window has passed.

    Not a tenant's to say: one question to a metrics source serves all fleets.
    """

    window: str = "10m"
    fast_window: str = "1m"
    """A load that surely rises is seen in this one already."""

    @property
    def window_s(self) -> float:
        """Seconds of the window."""
        return parse_duration(self.window)

    @property
    def fast_window_s(self) -> float:
        """Seconds of the fast window."""
        return parse_duration(self.fast_window)

    @model_validator(mode="after")
    def _fast_is_shorter(self) -> Self:
        if not MIN_WINDOW_S <= self.fast_window_s < self.window_s:
            raise ValueError(
                f"fastWindow {self.fast_window} beside window {self.window}: write a fastWindow of {MIN_WINDOW_S:.0f}s "
                "or more, so that some scrapes lie in it, and a longer window, such as 1m and 10m"
            )
        return self


class OperatorConfig(Model):
    """All that the operator is told. `namespaces`: empty means every namespace."""

    runtime_image: Annotated[str, Field(min_length=1)]
    loop_interval: str = "5s"
    namespaces: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    metrics_sources: Annotated[tuple[MetricsSource, ...], Field(max_length=100)] = ()
    sizing: SizingWindows = SizingWindows()

    @property
    def loop_interval_s(self) -> float:
        """Seconds between two turns of the fleet loop."""
        return parse_duration(self.loop_interval)

    @property
    def open_prometheus(self) -> dict[str, str]:
        """The addresses of the sources that answer without credentials, by name: what others may be told to ask."""
        return {source.name: source.url for source in self.metrics_sources if source.open}

    @field_validator("loop_interval")
    @classmethod
    def _not_a_busy_loop(cls, value: str) -> str:
        if parse_duration(value) < MIN_LOOP_INTERVAL_S:
            raise ValueError(f"{value} would flood the API server: write {MIN_LOOP_INTERVAL_S:.0f}s or more")
        return value

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [POD_SCRAPE, *(source.name for source in self.metrics_sources)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"metricsSources: {', '.join(twice)} is defined twice: give every source its own name")
        return self

    def with_namespaces(self, namespaces: tuple[str, ...]) -> OperatorConfig:
        """The same configuration, serving these namespaces alone; unchanged if none are given."""
        return self.model_copy(update={"namespaces": namespaces}) if namespaces else self


def parse_config(raw: Any) -> OperatorConfig:
    """Check a parsed document.

    Raises:
        ConfigError: a field is missing, unknown or wrong.
    """
    if not isinstance(raw, dict):
        raise ConfigError("the configuration is empty: it must at least say runtimeImage: IMAGE")
    try:
        return OperatorConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(fault) for fault in error.errors(include_url=False))) from None


def load_config(path: Path) -> OperatorConfig:
    """Read and check the file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or a field is wrong.
    """
    try:
        documents = parse_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): check --config") from None
    except YamlError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    if len(documents) > 1:
        raise ConfigError(f"{path}: holds {len(documents)} documents: write one")
    try:
        return parse_config(documents[0] if documents else None)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _sentence(fault: Any) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{field}: is not a setting: remove it or check its spelling"
    if fault["type"] == "missing":
        return f"{field}: is missing: write it"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {message}" if field else str(message)
