"""From a PrefillPolicy and the decisions taken about it to the Kubernetes objects that should exist. Pure."""

from prefleet_operator.render.actuators import ACTUATOR_KINDS, DESIRED_METRIC, known_prometheus, release_replicas
from prefleet_operator.render.fleet import (
    InstallationDefaults,
    PolicyObject,
    owner_reference,
    render_fleet,
)
from prefleet_operator.render.gates import with_gates
from prefleet_operator.render.names import (
    DELETION_COST_ANNOTATION,
    FIELD_MANAGER,
    FLEET_LABEL,
    GENERATION_ANNOTATION,
    GROUP_INDEX_LABEL,
    GROUP_SET_LABEL,
    KEPT_ANNOTATION,
    REVISION_ANNOTATION,
    ROLE_LABEL,
    ROUTER,
    SCALE_MANAGER,
    TEMPLATE_ANNOTATION,
    UPGRADE_ANNOTATION,
    fleet_labels,
    live_config_map_name,
    policy_config_map_name,
    role_labels,
    role_object_name,
    router_object_name,
    selector_labels,
)
from prefleet_operator.render.policy_files import render_policy_config_map
from prefleet_operator.render.revision import TEMPLATE_FIELDS, Revision, Settled, settle_revisions, template_digest
from prefleet_operator.render.router_command import router_warnings

__all__ = [
    "ACTUATOR_KINDS",
    "DELETION_COST_ANNOTATION",
    "DESIRED_METRIC",
    "FIELD_MANAGER",
    "FLEET_LABEL",
    "GENERATION_ANNOTATION",
    "GROUP_INDEX_LABEL",
    "GROUP_SET_LABEL",
    "KEPT_ANNOTATION",
    "REVISION_ANNOTATION",
    "ROLE_LABEL",
    "ROUTER",
    "SCALE_MANAGER",
    "TEMPLATE_ANNOTATION",
    "TEMPLATE_FIELDS",
    "UPGRADE_ANNOTATION",
    "InstallationDefaults",
    "PolicyObject",
    "Revision",
    "Settled",
    "fleet_labels",
    "known_prometheus",
    "live_config_map_name",
    "owner_reference",
    "policy_config_map_name",
    "release_replicas",
    "render_fleet",
    "render_policy_config_map",
    "role_labels",
    "role_object_name",
    "router_object_name",
    "router_warnings",
    "selector_labels",
    "settle_revisions",
    "template_digest",
    "with_gates",
]
