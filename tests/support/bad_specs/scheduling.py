"""How requests are scheduled, what is promised to them, and how that is tuned."""

from __future__ import annotations

from tests.support.bad_specs.document import BadSpec

BAD = (
    BadSpec(
        "a policy that this release cannot run",
        {"spec.scheduling.policy": "LongestFirst"},
        "spec.scheduling.policy",
        "PromoteShortest",
    ),
    BadSpec(
        "trust in clients that is no yes or no",
        {"spec.scheduling.trustClientPriority": "high"},
        "spec.scheduling.trustClientPriority",
        "boolean",
    ),
    BadSpec(
        "a wait that no clock can count",
        {"spec.scheduling.longMaxWait": "999999h999999h"},
        "spec.scheduling.longMaxWait",
        'write a duration from 0s to 24h with its unit (ms, s, m, h), such as "8s"',
    ),
    BadSpec(
        "a share of nothing",
        {"spec.scheduling.agedShare": 0},
        "spec.scheduling.agedShare",
        "greater than 0",
    ),
    BadSpec(
        "an unknown long chunk",
        {"spec.scheduling": {"longChunk": "Half"}},
        "spec.scheduling.longChunk",
        "Yield",
    ),
    BadSpec(
        "TPT without its numbers",
        {"spec.scheduling": {"stage": {"type": "TPT", "maxBatch": 64}}},
        "spec",
        "scheduling.stage: write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three: only",
    ),
    BadSpec(
        "TPT with one of its two costs",
        {"spec.scheduling": {"stage": {"type": "TPT", "maxBatch": 64, "decodePerRequest": "1ms"}}},
        "spec.scheduling.stage",
        "write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three, and with no other type",
    ),
    BadSpec(
        "the numbers of TPT with another stage",
        {"spec.scheduling": {"stage": {"type": "Mixed", "maxBatch": 64}}},
        "spec.scheduling.stage",
        "write prefillPerRequest, decodePerRequest and maxBatch with type TPT, all three, and with no other type",
    ),
    BadSpec(
        "a stall budget without a limit",
        {"spec.scheduling": {"stage": {"type": "StallBudget"}}},
        "spec.scheduling.stage",
        'write maxStall, such as "50ms", with type StallBudget and with no other type',
    ),
    BadSpec(
        "a stall too short to mean anything",
        {"spec.scheduling": {"stage": {"type": "StallBudget", "maxStall": "0.1ms"}}},
        "spec.scheduling.stage.maxStall",
        'write a duration from 1ms to 1h with its unit (ms, s, m, h), such as "50ms"',
    ),
    BadSpec(
        "a prefill that costs nothing",
        {
            "spec.scheduling": {
                "stage": {"type": "TPT", "prefillPerRequest": "0ms", "decodePerRequest": "1ms", "maxBatch": 8}
            }
        },
        "spec.scheduling.stage.prefillPerRequest",
        'write a duration from 0.001ms to 1h with its unit (ms, s, m, h), such as "80ms"',
    ),
    BadSpec(
        "a decode that takes hours",
        {
            "spec.scheduling": {
                "stage": {"type": "TPT", "prefillPerRequest": "9ms", "decodePerRequest": "9h", "maxBatch": 8}
            }
        },
        "spec.scheduling.stage.decodePerRequest",
        'write a duration from 0ms to 1h with its unit (ms, s, m, h), such as "0.5ms"',
    ),
    BadSpec(
        "a duration without a unit",
        {"spec.slo.shortTTFT": "500"},
        "spec.slo.shortTTFT",
        'write a duration from 1ms to 1h with its unit (ms, s, m, h), such as "500ms"',
    ),
    BadSpec(
        "a promise of nothing",
        {"spec.slo.longQueueWait": "0s"},
        "spec.slo.longQueueWait",
        'write a duration from 100ms to 24h with its unit (ms, s, m, h), such as "8s"',
    ),
    BadSpec(
        "a gap between tokens of nothing",
        {"spec.slo.interTokenGap": "0ms"},
        "spec.slo.interTokenGap",
        'write a duration from 1ms to 10s with its unit (ms, s, m, h), such as "200ms"',
    ),
    BadSpec(
        "a window too short to see anything",
        {"spec.tuning.window": "1s"},
        "spec.tuning.window",
        'write a duration from 10s to 24h with its unit (ms, s, m, h), such as "5m"',
    ),
    BadSpec(
        "a cooldown of a month",
        {"spec.tuning.cooldown": "720h"},
        "spec.tuning.cooldown",
        'write a duration from 0s to 168h with its unit (ms, s, m, h), such as "15m"',
    ),
    BadSpec(
        "a band upside down",
        {"spec.tuning.band": {"low": 85, "high": 70}},
        "spec.tuning.band",
        "write a low below high, such as low: 70 and high: 85",
    ),
    BadSpec(
        "a band above its own default",
        {"spec.tuning.band.low": 90},
        "spec.tuning.band",
        "write a low below high, such as low: 70 and high: 85",
    ),
    BadSpec(
        "no tuning and no values",
        {"spec.tuning.mode": "Off"},
        "spec",
        "scheduling: write threshold and longMaxWait, or set tuning.mode to Auto",
    ),
    BadSpec(
        "no tuning and half the values",
        {"spec.tuning.mode": "Off", "spec.scheduling.threshold": 512},
        "spec",
        "scheduling: write threshold and longMaxWait, or set tuning.mode to Auto",
    ),
    BadSpec(
        "a restart every hour",
        {"spec.tuning.restartBudget": 24},
        "spec.tuning.restartBudget",
        "less than or equal to 10",
    ),
)
