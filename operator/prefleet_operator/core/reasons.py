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
    POLICY_IS_FCFS = "PolicyIsFCFS"
    METRICS_MISSING = "MetricsMissing"
    METRICS_STALE = "MetricsStale"
    PINNED = "Pinned"
    COOLING_DOWN = "CoolingDown"

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
