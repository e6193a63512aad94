"""Reconcile one fleet: gather -> decide -> apply. Idempotent; every trigger calls it.

    1. decide on what is known, which costs no request; if nothing has to be written, that is all
    2. before any write, read the policy anew: a policy that is gone is forgotten, not brought back, and one that
       is newer is decided about again
    3. say which pods have to be replaced, if any; apply; then write the status, bound to the status that was read;
       then say what happened

The status is written after the objects, so a status never promises what was not applied. A fault ends the turn
with Accepted saying so (where the API server still answers), and the queue tries again after a pause. Of an API server
that does not do what it is asked, which mostly passes, it is said once that has gone on for `TOLD_AFTER_S`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prefleet_operator.adapters.events import CONFIG_MAP_KIND, Recorder
from prefleet_operator.adapters.kube import (
    INSTALL_HINTS,
    POLICIES,
    ConflictError,
    Kube,
    KubeError,
    NotFoundError,
    Object,
    RefusedError,
    TerminatingError,
)
from prefleet_operator.api import POD_SCRAPE, InvalidSpecError, PrefillPolicySpec, PrefillPolicyStatus, parse_spec
from prefleet_operator.app.apply import Applier, Changes, merge_patch
from prefleet_operator.app.claims import Overlaps
from prefleet_operator.app.decision import Installation, decide
from prefleet_operator.app.gather import Cluster, gather_pods
from prefleet_operator.app.leader import LeadershipLostError
from prefleet_operator.app.policies import PolicyIndex, PolicyRecord
from prefleet_operator.app.readings import Readings
from prefleet_operator.app.sizings import Sizings
from prefleet_operator.app.workqueue import Key, WorkFailedError
from prefleet_operator.core.attached import still_attached
from prefleet_operator.core.events import Event, condition_events
from prefleet_operator.core.plan import Plan
from prefleet_operator.core.ready import still_ready
from prefleet_operator.core.reasons import Reason
from prefleet_operator.core.restarts import restart_events
from prefleet_operator.core.status import refused
from prefleet_operator.render import live_config_map_name

logger = logging.getLogger(__name__)


TOLD_AFTER_S = 60.0


class _UnservedKindError(Exception):
    """The cluster lacks a kind that the fleet needs; the message is the sentence for Accepted."""


class Outcome(StrEnum):
    """How one turn ended."""

    UNCHANGED = "unchanged"
    WRITTEN = "written"
    REFUSED = "refused"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one turn is to write. Without a plan, only the status that says why there is none.

    `config_map`: the name of the policy ConfigMap. `restarts`: what is said, before anything is applied, of the pods
    that it replaces.
    """

    policy: PolicyRecord
    status: PrefillPolicyStatus
    changes: Changes
    plan: Plan | None = None
    config_map: str = ""
    restarts: tuple[Event, ...] = ()

    @property
    def status_patch(self) -> Object:
        """The merge patch of the status; empty if it stands there already."""
        return merge_patch(self.policy.raw_status, self.status.to_resource())

    @property
    def writes(self) -> bool:
        """Whether anything has to be written."""
        return bool(self.changes) or bool(self.status_patch)


class Reconciler:
    """Reconciles any fleet; of its own it remembers only when pods were last seen to overlap. `now` gives Unix seconds;
    `follow` is told of a policy that was read anew, whose pods may be others now. `sizings`: what was last decided on
    the sizes of fleets, be it carried out or not."""

    def __init__(
        self,
        kube: Kube,
        policies: PolicyIndex,
        cluster: Cluster,
        readings: Readings,
        sizings: Sizings,
        applier: Applier,
        recorder: Recorder,
        installation: Installation,
        now: Callable[[], float],
        count: Callable[[Outcome], None],
        follow: Callable[[PolicyRecord], None] = lambda _: None,
    ) -> None:
        self._kube = kube
        self._policies = policies
        self._cluster = cluster
        self._readings = readings
        self._sizings = sizings
        self._applier = applier
        self._recorder = recorder
        self._installation = installation
        self._now = now
        self._count = count
        self._follow = follow
        self._overlaps = Overlaps(policies, cluster)
        self._failing_since_s: dict[Key, float] = {}

    async def reconcile(self, key: Key) -> None:
        """One turn. Raises WorkFailedError if it should be tried again."""
        policy = self._policies.get(key)
        if policy is None or policy.deleting:
            self._applier.forget(*key)
            self._overlaps.forget(key)
            self._failing_since_s.pop(key, None)
            if policy is None:
                await self._leave_what_stays(key)
            return
        if not self._cluster.knows_attached(policy.namespace):
            return
        if self._waits_for_a_reading(policy):
            self._readings.ask()
            return
        outcome = await self._guarded(policy)
        if outcome is not Outcome.FAILED:
            self._failing_since_s.pop(key, None)
        self._count(outcome)
        if outcome in (Outcome.REFUSED, Outcome.FAILED):
            raise WorkFailedError

    async def _leave_what_stays(self, key: Key) -> None:
        """A policy is gone: what it leaves behind is nobody's to steer any more."""
        try:
            await self._applier.let_go(*key)
        except (KubeError, LeadershipLostError) as error:
            logger.warning("%s/%s: what its policy left paused is not resumed yet: %s", *key, error)
            raise WorkFailedError from error
        await self._tell_what_stays(key, f"PrefillPolicy {key[1]} was deleted")

    def _waits_for_a_reading(self, policy: PolicyRecord) -> bool:
        """Whether the source will tell of the fleet's pods soon. Nobody asks it about a spec that is wrong, or that
        is refused for its pods."""
        source = policy.spec.get("metricsSource", POD_SCRAPE)
        if self._readings.known(policy.uid, source) or not any(p.ready for p in self._cluster.fleet_pods(*policy.key)):
            return False
        if self._overlaps.refusal(policy, self._now()) is not None:
            return False
        try:
            parse_spec(policy.spec)
        except InvalidSpecError:
            return False
        return True

    async def _guarded(self, policy: PolicyRecord) -> Outcome:
        """A fault in one fleet becomes its Accepted condition, a log line and a count, and nothing else."""
        try:
            return await self._turn(policy)
        except TerminatingError:
            return Outcome.GONE
        except KubeError as error:
            logger.warning("%s/%s: %s; trying again", policy.namespace, policy.name, error)
            await self._say_failing(policy.key, error)
            return Outcome.FAILED
        except LeadershipLostError as error:
            logger.warning("%s/%s: nothing more is written: %s", policy.namespace, policy.name, error)
            return Outcome.FAILED
        except Exception as error:
            logger.exception("%s/%s: cannot be reconciled; trying again", policy.namespace, policy.name)
            message = (
                f"The operator fails over this policy ({type(error).__name__}: {error}) and tries again: "
                "see its log; what runs is left as it is."
            )
            await self._say_refused(policy, policy.status, Reason.RECONCILE_FAILED, message)
            return Outcome.FAILED

    async def _say_failing(self, key: Key, error: KubeError) -> None:
        """Of a write that fails again and again, as where an admission webhook is down, the user must see more than an
        old status."""
        now = self._now()
        latest = self._policies.get(key)
        if now - self._failing_since_s.setdefault(key, now) < TOLD_AFTER_S or latest is None:
            return
        message = (
            f"For a minute and more the API server has not done what this policy needs ({error}), and the operator "
            "tries again: see to what keeps it; what runs is left as it is."
        )
        await self._say_refused(latest, latest.status, Reason.RECONCILE_FAILED, message)

    async def _turn(self, policy: PolicyRecord) -> Outcome:
        attempt = self._decide(policy)
        if not attempt.writes:
            return Outcome.UNCHANGED if attempt.plan is not None else Outcome.REFUSED
        fresh = await self._read(policy)
        if fresh is None:
            return Outcome.GONE
        if fresh.version != policy.version:
            attempt = self._decide(fresh)
        return await self._carry_out(attempt)

    async def _read(self, policy: PolicyRecord) -> PolicyRecord | None:
        try:
            fresh = PolicyRecord.of(await self._kube.get(POLICIES, policy.namespace, policy.name))
        except NotFoundError:
            self._policies.drop(policy.key, policy.uid)
            return None
        self._policies.put(fresh)
        self._follow(fresh)
        return None if fresh.deleting else fresh

    def _decide(self, policy: PolicyRecord) -> Attempt:
        try:
            spec = parse_spec(policy.spec)
            fault = self._fault_of_pods(policy)
            if fault is None:
                return self._attempt(policy, spec)
            reason, message = fault
        except InvalidSpecError as error:
            reason, message = Reason.INVALID_SPEC, str(error)
        except _UnservedKindError as error:
            reason, message = Reason.KIND_NOT_SERVED, str(error)
        status = refused(self._recounted(policy), policy.generation, reason, message, self._now())
        return Attempt(policy, status, Changes(policy.namespace, policy.name, 0))

    def _fault_of_pods(self, policy: PolicyRecord) -> tuple[Reason, str] | None:
        """Why the policy is refused for the pods that it attaches, if it is."""
        attached = self._cluster.attached.get(policy.key)
        if attached is not None and attached.refused is not None:
            return Reason.APPLY_REFUSED, f"The API server refuses the podSelector of spec.attach: {attached.refused}"
        overlap = self._overlaps.refusal(policy, self._now())
        return None if overlap is None else (Reason.PODS_OVERLAP, overlap)

    def _recounted(self, policy: PolicyRecord) -> PrefillPolicyStatus:
        """The status of a fleet whose spec cannot be carried out: what runs goes on, and must be told of."""
        pods, stuck, denied = gather_pods(policy, self._cluster, self._now())
        made = any(each.role is not None for each in self._cluster.workloads(policy.key))
        if policy.key in self._cluster.attached and not made:
            return still_attached(policy.status, pods, self._now())
        router = self._cluster.router(*policy.key)
        return still_ready(policy.status, pods, stuck, denied, self._now(), router)

    def _attempt(self, policy: PolicyRecord, spec: PrefillPolicySpec) -> Attempt:
        if not self._cluster.knows_attached(policy.namespace):
            raise ConflictError("the pods of a changed selector have not been listed yet: decide again")
        reading = self._readings.of(policy.uid, spec.metrics_source)
        known = self._sizings.of(policy.uid)
        decision = decide(policy, spec, self._cluster, reading, self._installation, self._now(), known)
        plan, objects = decision.plan, decision.objects
        self._sizings.put(policy.uid, plan.sizing)
        self._refuse_unserved(objects)
        generation = plan.policy.generation
        changes = self._applier.changes(
            policy.namespace,
            policy.name,
            objects,
            plan.annotate,
            generation,
            decision.sizes,
            decision.costs,
            decision.leaving.kept_roles,
        )
        config_map = live_config_map_name(policy.name, spec)
        return Attempt(
            policy, plan.status, changes, plan, config_map, restart_events(decision.restarts, decision.leaving.going)
        )

    def _refuse_unserved(self, objects: Sequence[Object]) -> None:
        """Raises where an object is of a kind that this cluster does not know: then nothing is applied at all."""
        for rendered in objects:
            kind = rendered["kind"]
            if kind in self._cluster.unserved:
                name = rendered["metadata"]["name"]
                raise _UnservedKindError(
                    f"This cluster does not serve the kind {kind}, which {name} is to be of: {INSTALL_HINTS[kind]}."
                )

    async def _carry_out(self, attempt: Attempt) -> Outcome:
        policy, plan = attempt.policy, attempt.plan
        await self._tell(policy, attempt.restarts)
        try:
            await self._applier.carry_out(attempt.changes)
        except RefusedError as error:
            status = attempt.status if self._policy_is_live(attempt) else self._recounted(policy)
            await self._say_refused(policy, status, Reason.APPLY_REFUSED, str(error))
            return Outcome.REFUSED
        await self._write_status(attempt)
        if plan is None:
            await self._tell(policy, condition_events(policy.status, attempt.status))
            return Outcome.REFUSED
        if policy.status.effective != plan.status.effective:
            logger.info("%s/%s: %s", policy.namespace, policy.name, plan.status.history[-1].message)
        await self._tell(policy, plan.events)
        if policy.status.observed_generation not in (None, policy.generation):
            why = f"PrefillPolicy {policy.name} is written to {attempt.config_map} now"
            await self._tell_what_stays(policy.key, why, but=attempt.config_map)
        return Outcome.WRITTEN

    def _policy_is_live(self, attempt: Attempt) -> bool:
        """Whether the ConfigMap was applied before something else was refused: then the status must know."""
        policy, plan = attempt.policy, attempt.plan
        record = self._cluster.children["ConfigMap"].get(policy.namespace, attempt.config_map)
        if plan is None or record is None or record.identity.fleet != policy.name:
            return False
        return record.annotated_generation == plan.policy.generation

    async def _say_refused(
        self, policy: PolicyRecord, status: PrefillPolicyStatus, reason: Reason, message: str
    ) -> None:
        said = refused(status, policy.generation, reason, message, self._now())
        attempt = Attempt(policy, said, Changes(policy.namespace, policy.name, 0))
        try:
            await self._write_status(attempt)
        except (KubeError, LeadershipLostError) as error:
            logger.warning("%s/%s: the status could not be written: %s", policy.namespace, policy.name, error)
            return
        await self._tell(policy, condition_events(policy.status, said))

    async def _write_status(self, attempt: Attempt) -> None:
        """Bound to the version that was read, or to a newer one of the same object under the same status.

        What was applied must be known: a move that no status tells is adopted later, its reason and evidence lost.
        """
        policy, patch = attempt.policy, attempt.status_patch
        if not patch:
            return
        try:
            await self._patch_status(policy, patch)
        except ConflictError:
            fresh = await self._read(policy)
            if fresh is None or (fresh.uid, fresh.raw_status) != (policy.uid, policy.raw_status):
                raise
            await self._patch_status(fresh, patch)

    async def _patch_status(self, policy: PolicyRecord, patch: Object) -> None:
        body = {"metadata": {"resourceVersion": str(policy.version)}, "status": patch}
        answer = await self._kube.merge_patch(POLICIES, policy.namespace, policy.name, body, "status")
        self._policies.put(PolicyRecord.of(answer))

    async def _tell(self, policy: PolicyRecord, events: tuple[Event, ...]) -> None:
        for event in events:
            await self._recorder.record(policy.namespace, policy.name, policy.uid, event)

    async def _tell_what_stays(self, key: Key, why: str, but: str = "") -> None:
        """Say of each ConfigMap of the fleet that pods of others may mount, and that nobody writes any more, that it
        stays."""
        namespace, fleet = key
        for record in self._cluster.children["ConfigMap"].of(namespace, fleet):
            identity = record.identity
            if not record.kept or identity.name == but:
                continue
            generation = record.annotated_generation
            message = (
                f"{why}: this ConfigMap stays as it is, with generation {generation}, and pods that mount it go on "
                "with that; delete it once none does."
            )
            logger.info("%s/%s: the ConfigMap stays: %s", namespace, identity.name, message)
            event = Event(Reason.CONFIG_MAP_KEPT, message)
            await self._recorder.record(namespace, identity.name, identity.uid, event, CONFIG_MAP_KIND)


def reasons_by_condition(policies: PolicyIndex) -> Mapping[tuple[str, str, str], int]:
    """How many policies there are for each (condition, status, reason)."""
    counts: dict[tuple[str, str, str], int] = {}
    for policy in policies:
        for condition in policy.status.conditions:
            label = (condition.type.value, condition.status.value, condition.reason)
            counts[label] = counts.get(label, 0) + 1
    return counts
