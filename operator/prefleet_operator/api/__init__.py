"""PrefillPolicy: the one source of the custom resource definition, of its parsing and of its status.

`PrefillPolicySpec` is what a user writes, `PrefillPolicyStatus` is what the operator answers. The CRD is
generated from these models (`prefleet crd`), rules across fields included."""

from prefleet_operator.api.arguments import (
    MERGED_ARGUMENT,
    OPERATOR_ARGUMENTS,
    OPERATOR_ENV,
    RUNTIME_SETTINGS_KEY,
)
from prefleet_operator.api.attach import AttachedRole, AttachSpec, PodSelector
from prefleet_operator.api.autoscaling import Actuator, AutoscalingSpec, RatioBounds, RoleBounds
from prefleet_operator.api.base import (
    GROUP,
    KIND,
    PLURAL,
    POD_SCRAPE,
    SHORT_NAME,
    VERSION,
    DurationText,
    Model,
    format_duration,
    parse_duration,
)
from prefleet_operator.api.crd import custom_resource_definition
from prefleet_operator.api.engine_rules import SUPPORTED_VLLM, TOP_LEVEL_VLLM_ASCEND
from prefleet_operator.api.engine_types import (
    CAPABILITIES,
    Capabilities,
    EngineType,
    SchedulingPolicy,
    StageType,
    Told,
)
from prefleet_operator.api.model import HubSource, ModelSource, ModelSpec, PvcSource, SecretKeyRef
from prefleet_operator.api.parse import (
    NAME_RULE,
    InvalidSpecError,
    PolicyDocument,
    parse_document,
    parse_spec,
)
from prefleet_operator.api.roles import (
    Accelerator,
    EnvVar,
    Role,
    RoleSpec,
    RolloutSpec,
    SecurityProfile,
    SecuritySpec,
)
from prefleet_operator.api.router import RouterSpec, RouterType
from prefleet_operator.api.rule import Rule
from prefleet_operator.api.scheduling import LengthMeasure, LongChunkMode, SchedulingSpec, StageSpec
from prefleet_operator.api.spec import (
    Band,
    EngineSpec,
    PrefillPolicySpec,
    RuntimeSpec,
    SloSpec,
    TuningMode,
    TuningSpec,
)
from prefleet_operator.api.status import (
    BandStatus,
    Condition,
    ConditionStatus,
    ConditionType,
    EffectiveStatus,
    Move,
    PodColumns,
    PrefillPolicyStatus,
    RoleSizeStatus,
    RoleStatus,
    SizingStatus,
    TunedValue,
    TuningStatus,
)
from prefleet_operator.api.yaml_text import YamlError, parse_yaml

__all__ = [
    "CAPABILITIES",
    "GROUP",
    "KIND",
    "MERGED_ARGUMENT",
    "NAME_RULE",
    "OPERATOR_ARGUMENTS",
    "OPERATOR_ENV",
    "PLURAL",
    "POD_SCRAPE",
    "RUNTIME_SETTINGS_KEY",
    "SHORT_NAME",
    "SUPPORTED_VLLM",
    "TOP_LEVEL_VLLM_ASCEND",
    "VERSION",
    "Accelerator",
    "Actuator",
    "AttachSpec",
    "AttachedRole",
    "AutoscalingSpec",
    "Band",
    "BandStatus",
    "Capabilities",
    "Condition",
    "ConditionStatus",
    "ConditionType",
    "DurationText",
    "EffectiveStatus",
    "EngineSpec",
    "EngineType",
    "EnvVar",
    "HubSource",
    "InvalidSpecError",
    "LengthMeasure",
    "LongChunkMode",
    "Model",
    "ModelSource",
    "ModelSpec",
    "Move",
    "PodColumns",
    "PodSelector",
    "PolicyDocument",
    "PrefillPolicySpec",
    "PrefillPolicyStatus",
    "PvcSource",
    "RatioBounds",
    "Role",
    "RoleBounds",
    "RoleSizeStatus",
    "RoleSpec",
    "RoleStatus",
    "RolloutSpec",
    "RouterSpec",
    "RouterType",
    "Rule",
    "RuntimeSpec",
    "SchedulingPolicy",
    "SchedulingSpec",
    "SecretKeyRef",
    "SecurityProfile",
    "SecuritySpec",
    "SizingStatus",
    "SloSpec",
    "StageSpec",
    "StageType",
    "Told",
    "TunedValue",
    "TuningMode",
    "TuningSpec",
    "TuningStatus",
    "YamlError",
    "custom_resource_definition",
    "format_duration",
    "parse_document",
    "parse_duration",
    "parse_spec",
    "parse_yaml",
]
