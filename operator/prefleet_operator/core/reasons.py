"""Why something is as it is: the one vocabulary of conditions, events and metric labels.

A reason is a CamelCase word, as Kubernetes wants it in `condition.reason`; the sentence with the numbers
that decided stands beside it in the message.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Every reason that the operator gives."""

    # Tuning as a whole.
    TUNING_OFF = "TuningOff"
    NOTHING_TO_TUNE = "NothingToTune"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    PINNED = "Pinned"
    COOLING_DOWN = "CoolingDown"
    RESTART_BUDGET_SPENT = "RestartBudgetSpent"

    # The threshold.
    LEARNING_LENGTHS = "LearningLengths"
    VALLEY = "Valley"
    BAND_OPTIMUM = "BandOptimum"
    WITHIN_BAND = "WithinBand"
    NO_LENGTH_SPREAD = "NoLengthSpread"

    # The wait limit.
    LEARNING_WAITS = "LearningWaits"
    LONG_WAIT_BEYOND_SLO = "LongWaitBeyondSLO"
    WAIT_FROM_LONG_WAITS = "WaitFromLongWaits"
    WITHIN_HYSTERESIS = "WithinHysteresis"
    SLO_LOWERED = "SLOLowered"
    CAPACITY_LIMITED = "CapacityLimited"

    # How many pods.
    DEMAND = "Demand"
    DECODE_LOAD = "DecodeLoad"
    BACKLOG = "Backlog"
    LONG_WAITS = "LongWaits"
    WITHIN_TOLERANCE = "WithinTolerance"
    STABILISING = "Stabilising"
    DAMPED = "Damped"
    RATIO_KEPT = "RatioKept"
    AT_MIN_REPLICAS = "AtMinReplicas"
    AT_MAX_REPLICAS = "AtMaxReplicas"
    QUOTA_EXHAUSTED = "QuotaExhausted"
    LEARNING_CAPACITY = "LearningCapacity"
    NOT_FOLLOWED = "NotFollowed"
    SCALED_BY_ANOTHER = "ScaledByAnother"
    SCALED = "Scaled"

    # Whether the spec can be carried out.
    ACCEPTED = "Accepted"
    INVALID_SPEC = "InvalidSpec"
    KIND_NOT_SERVED = "KindNotServed"
    APPLY_REFUSED = "ApplyRefused"
    RECONCILE_FAILED = "ReconcileFailed"
    ENGINE_WARNING = "EngineWarning"
    PODS_OVERLAP = "PodsOverlap"

    # What becomes of pods when a spec or the operator changes.
    RESTART_NEEDED = "RestartNeeded"
    UPGRADE_WAITS = "UpgradeWaits"
    ROLLOUT_STOPPED = "RolloutStopped"

    # Pods.
    PODS_READY = "PodsReady"
    PODS_NOT_READY = "PodsNotReady"
    SCALING = "Scaling"
    ROLLOUT_STUCK = "RolloutStuck"
    NO_PODS_WANTED = "NoPodsWanted"
    NO_READY_PODS = "NoReadyPods"
    NO_PODS_FOUND = "NoPodsFound"
    ROUTER_NOT_READY = "RouterNotReady"
    PODS_REFUSED = "PodsRefused"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    ENGINE_CRASHING = "EngineCrashing"

    # Whether the setting runs.
    GENERATION_REPORTED = "GenerationReported"
    PROPAGATING = "Propagating"
    GENERATION_NOT_REPORTED = "GenerationNotReported"
    GENERATION_UNKNOWN = "GenerationUnknown"
    STARTED_WITH_GENERATION = "StartedWithGeneration"
    REPLACING_PODS = "ReplacingPods"

    # How well the fleet serves.
    CAPACITY_SUFFICES = "CapacitySuffices"
    LONGS_HELD_BACK = "LongsHeldBack"
    SHORTS_OVERTAKEN = "ShortsOvertaken"
    SERVING_AS_SET = "ServingAsSet"

    # Where metrics come from.
    METRICS_FRESH = "MetricsFresh"
    UNKNOWN_METRICS_SOURCE = "UnknownMetricsSource"

    # Why the setting changed, where the tuner did not change it.
    FLEET_CREATED = "FleetCreated"
    SPEC_CHANGED = "SpecChanged"
    DRIFT_CORRECTED = "DriftCorrected"
    ADOPTED = "Adopted"

    # What stays when nobody writes it any more.
    CONFIG_MAP_KEPT = "ConfigMapKept"


UNMEASURED = (Reason.METRICS_MISSING, Reason.METRICS_STALE)
"""Reasons that tell of no fresh measurement, and of nothing else."""
