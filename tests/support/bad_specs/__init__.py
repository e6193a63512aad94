"""PrefillPolicies that must be refused, and the words that the refusal has to hold.

One table for both judges: `parse_document` in the unit tests, the API server in the control plane's. A file for each
part of the resource.
"""

from tests.support.bad_specs import attached, autoscaling, engines, model, pods, router, scheduling
from tests.support.bad_specs.document import GOOD, BadSpec
from tests.support.bad_specs.engines import engine_document

__all__ = ["BAD_SPECS", "GOOD", "BadSpec", "engine_document"]

BAD_SPECS: tuple[BadSpec, ...] = (
    *pods.BAD,
    *attached.BAD,
    *model.BAD,
    *scheduling.BAD,
    *router.BAD,
    *engines.BAD,
    *autoscaling.BAD,
)
