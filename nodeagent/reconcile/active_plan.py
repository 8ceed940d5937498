"""Which document counts: the newest, unless it is refused; then the last good one stays.

A document is good once it was read without fault, resolved against this node's GPUs, and found
to be possible on them. That is judged anew whenever the node is observed, so a document that
was refused because a GPU did not answer is accepted when the GPU is back. One that was refused for
what a GPU cannot be is not accepted while that GPU does not answer.
"""

import asyncio
from collections.abc import Callable, Sequence

from nodeagent.documents.reading import digest_of, read_document
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.state import StateFile
from nodeagent.plan.desired import (
    DesiredNode,
    PlanDocument,
    WithClaims,
    node_with_claims,
    unclaimed,
)
from nodeagent.plan.numbers import Numbers, numbered, numbers_of
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict, worst
from nodeagent.plan.planner import plan
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve import resolve, verdict_of
from nodeagent.plan.shares import Host
from nodeagent.reconcile.loop_control import LoopControl
from nodeagent.reconcile.plan_update import (
    DeferredPlan,
    KeptPlan,
    NoPlan,
    PlanText,
    PlanUpdate,
    UnreadablePlan,
    last_good_plan,
)
from nodeagent.structs import Struct, field, replace
from nodeagent.views.shapes import Refused

_NOTHING_DESIRED = DesiredNode({})

HostFor = Callable[[PlanDocument], Host]
"""What of the host bears on a document; may block, and is called in a thread."""
_NEVER = frozenset({Verdict.INVALID, Verdict.UNSATISFIABLE})


class ReadPlan(Struct, frozen=True):
    """A text that was read without fault, and what of the host bore on it then."""

    text: PlanText
    document: PlanDocument
    host: Host


class PlanEvaluation(Struct, frozen=True):
    """What to do for an observation.

    `plan` is None while no document is in force; `document`, `desired` and `observed` are what it
    was made from. `accepted` is set when the plan in force is another than before. `refusal` is why
    the newest is not it.
    """

    plan: NodePlan | None = None
    document: PlanDocument | None = None
    desired: DesiredNode = _NOTHING_DESIRED
    accepted: PlanText | None = None
    refusal: Refused | None = None
    observed: ObservedNode = field(default_factory=ObservedNode)

    @property
    def gpus(self) -> tuple[GpuPlan, ...]:
        return self.plan.gpus if self.plan else ()


class ActivePlan:
    """The newest update of the plan's source and the document that counts; `file` keeps the latter
    where it survives a restart.
    """

    def __init__(
        self,
        control: LoopControl,
        host_for: HostFor = lambda _: Host(),
        with_claims: WithClaims = lambda goal, _: goal,
        file: StateFile[KeptPlan] | None = None,
    ) -> None:
        self._control = control
        self._host_for = host_for
        self._with_claims = with_claims
        self._file = file or last_good_plan(None)
        self._saved: KeptPlan | None = None
        self._latest: PlanUpdate | DeferredPlan | None = None  # update of the plan's source
        self._evaluated: PlanUpdate | DeferredPlan | None = None  # the latest when last evaluated
        # What was read last: the latest update, or what the deferred plan is on this node.
        self.offered: PlanUpdate | None = None
        self._candidate: ReadPlan | None = None
        # Why a candidate was, when tried last; as an error it would keep all that was observed.
        self._refused: tuple[ReadPlan, Sequence[Problem]] | None = None
        self._unreadable: Refused | None = None
        self._in_force: ReadPlan | None = None
        self._desired: DesiredNode | None = None
        self._numbers: Numbers = ()  # of GPUs, as the plan in force means them

    @property
    def text(self) -> PlanText | None:
        return self._in_force.text if self._in_force else None

    @property
    def is_new(self) -> bool:
        """Return whether something was offered that has not been judged yet."""
        return self._latest is not self._evaluated

    @property
    def kept(self) -> KeptPlan | None:
        """The plan in force, as the next life has to know it."""
        return KeptPlan(self._in_force.text, self._numbers) if self._in_force else None

    @property
    def digest(self) -> str:
        return self._in_force.document.digest if self._in_force else ""

    @property
    def note(self) -> str:
        """A sentence about a carrier that holds no plan."""
        if not isinstance(self.offered, NoPlan):
            return ""
        kept = "; the last good plan stays in force" if self._in_force else ""
        return self.offered.reason + kept

    @property
    def source_problems(self) -> tuple[Problem, ...]:
        """The problem of a plan source that is missing but required."""
        problem = self.offered.problem if isinstance(self.offered, NoPlan) else None
        return (replace(problem, message=self.note),) if problem else ()

    @property
    def unreadable_problems(self) -> tuple[Problem, ...]:
        """Return why the newest offer could not even be read."""
        return self._unreadable.problems if self._unreadable else ()

    def offer(self, update: PlanUpdate | DeferredPlan) -> None:
        """Take an update of the plan's source; a change counts at once, between two steps."""
        if update != self._latest:
            self._latest = update
            self._control.halt.set()
            self._control.wake("the plan's source changed")
        self._control.offered.set()

    async def read_offer(self, observed: ObservedNode | None = None) -> None:
        """Read the newest offer, if that is not done yet; in a thread, because it may be long.

        A deferred plan is made anew for each `observed`, and not without.
        """
        update: PlanUpdate | DeferredPlan | None = None
        while update is not self._latest:
            update = self._latest
            if isinstance(update, PlanText | NoPlan | UnreadablePlan | None):
                offer = update
            elif observed is None:
                return
            else:
                offer = await asyncio.to_thread(self._on, update, observed)
            if offer != self.offered:
                await self._read_newest(offer)

    def _on(self, update: DeferredPlan, observed: ObservedNode) -> PlanUpdate:
        """Make the deferred plan; by the numbers of the plan in force, where it comes to that."""
        as_kept = numbered(observed, numbers_of(observed, self._numbers))
        offer = update.on(as_kept)
        if as_kept == observed or (self._in_force and offer == self._in_force.text):
            return offer
        return update.on(observed)

    async def _read_newest(self, offer: PlanUpdate | None) -> None:
        found: ReadPlan | Refused | None = None
        if isinstance(offer, PlanText):
            found = await asyncio.to_thread(self._read_or_refuse, offer)
        elif isinstance(offer, UnreadablePlan):
            found = Refused(digest="", problems=(offer.problem,))
        self.offered = offer
        self._candidate = found if isinstance(found, ReadPlan) else None
        self._unreadable = found if isinstance(found, Refused) else None

    async def restore(self) -> tuple[str, ...]:
        """The plan kept by an earlier life is the last good one; gives what is wrong with it."""
        kept = await asyncio.to_thread(self._file.load)
        troubles = (str(self._file.problem),) if self._file.problem else ()
        try:
            if kept:
                await asyncio.to_thread(self.remember, kept)
                self._saved = kept
        except NodeagentError as error:
            return (*troubles, f"the last good plan cannot be used: {error}")
        return troubles

    def remember(self, kept: KeptPlan) -> None:
        """Take a plan that was kept as the last good one. Raises DocumentError."""
        self._in_force = self._read(kept.plan)
        self._numbers = kept.numbers

    async def save(self) -> str:
        """Keep the plan in force, unless that is done; gives why that failed."""
        kept = self.kept
        if kept is None or kept == self._saved:
            return ""
        try:
            await asyncio.to_thread(self._file.save, kept)
        except NodeagentError as error:  # a full disk, say: the next round tries again
            return str(error)
        self._saved = kept
        return ""

    def evaluate(self, observed: ObservedNode, policy: Policy) -> PlanEvaluation:
        """Decide which document counts for this observation, and plan it."""
        refusal, self._evaluated = self._unreadable, self._latest
        self._numbers = numbers_of(observed, self._numbers)
        if (new := self._candidate) and new != self._in_force:
            same = self._in_force is not None and new.text == self._in_force.text
            numbers = self._numbers if same else ()
            try:
                self._require_answers(new, observed)
                self._desired, node_plan = self._make(new, observed, numbers, policy)
            except DocumentError as error:
                self._refused = new, error.problems
                refusal = Refused(digest=new.document.digest, problems=error.problems)
            else:
                self._in_force, self._numbers = new, numbers or numbers_of(observed)
                return PlanEvaluation(
                    node_plan, new.document, self._desired, accepted=new.text, observed=observed
                )
        if self._in_force is None:
            return PlanEvaluation(refusal=refusal, observed=observed)
        impossible: tuple[Problem, ...] = ()
        try:
            self._desired = self._resolved(self._in_force, observed, self._numbers)
        except DocumentError as error:
            if self._desired is None:
                refusal = refusal or Refused(digest=self.digest, problems=error.problems)
                return PlanEvaluation(refusal=refusal, observed=observed)
            impossible = error.problems
        # What was possible once goes on to hold for the GPUs that are still there.
        desired = node_with_claims(self._desired, observed, self._with_claims)
        node_plan = _without_the_impossible(plan(desired, observed, policy), impossible)
        return PlanEvaluation(
            node_plan, self._in_force.document, desired, refusal=refusal, observed=observed
        )

    def _require_answers(self, candidate: ReadPlan, observed: ObservedNode) -> None:
        """Refuse a plan as before while a GPU because of which it was refused does not answer."""
        if self._refused and self._refused[0] is candidate:
            silent = {gpu.uuid for gpu in observed.gpus if not gpu.answers} - {""}
            if not silent.isdisjoint(problem.gpu for problem in self._refused[1]):
                raise DocumentError(self._refused[1])

    def _resolved(
        self, candidate: ReadPlan, observed: ObservedNode, numbers: Numbers
    ) -> DesiredNode:
        own = unclaimed(numbered(observed, numbers), self._with_claims)
        return resolve(candidate.document, own, candidate.host)

    def _make(
        self, candidate: ReadPlan, observed: ObservedNode, numbers: Numbers, policy: Policy
    ) -> tuple[DesiredNode, NodePlan]:
        """Resolve and plan the candidate. Raises DocumentError where it can never be."""
        resolved = self._resolved(candidate, observed, numbers)
        desired = node_with_claims(resolved, observed, self._with_claims)
        made = plan(desired, observed, policy)
        if made.verdict in _NEVER:
            of_gpus = (p for gpu in made.gpus if gpu.verdict in _NEVER for p in gpu.problems)
            raise DocumentError((*made.problems, *of_gpus))
        return desired, made

    def _read(self, text: PlanText) -> ReadPlan:
        document = read_document(text.text, configuration=text.configuration)
        return ReadPlan(text, document, self._host_for(document))

    def _read_or_refuse(self, text: PlanText) -> ReadPlan | Refused:
        try:
            return self._read(text)
        except DocumentError as error:
            return Refused(digest=digest_of(text.text), problems=error.problems)

    def preview(
        self, text: PlanText, observed: ObservedNode, policy: Policy
    ) -> tuple[bool, NodePlan]:
        """Whether the text is a document, and what it would do to the node as it was `observed`; a
        refusal is an answer, not an error. The plan in force means the GPUs by its own numbers.
        """
        try:
            found = self._read(text)
        except DocumentError as error:
            digest = digest_of(text.text)
            return False, NodePlan(Verdict.INVALID, problems=error.problems, digest=digest)
        in_force = self._in_force is not None and self._in_force.text == text
        try:
            desired = self._resolved(found, observed, self._numbers if in_force else ())
        except DocumentError as error:
            digest = found.document.digest
            return True, NodePlan(verdict_of(error), problems=error.problems, digest=digest)
        return True, plan(node_with_claims(desired, observed, self._with_claims), observed, policy)


def _without_the_impossible(made: NodePlan, problems: Sequence[Problem]) -> NodePlan:
    """The plan without calling in sync what its document cannot be on these GPUs by now: one
    answers again, or has come, or was changed by another program. One that is gone is in the plan.
    """
    found = [problem for problem in problems if problem.code is not Code.UNKNOWN_DEVICE]
    planned = {gpu.before.uuid for gpu in made.gpus}
    others = tuple(problem for problem in found if problem.gpu not in planned)
    gpus = []
    for gpu in made.gpus:
        mine = [problem for problem in found if problem.gpu == gpu.before.uuid]
        if mine and gpu.verdict is Verdict.IN_SYNC:
            gpus.append(GpuPlan.refused(gpu.before, Verdict.UNSATISFIABLE, *mine))
        else:
            gpus.append(gpu)
    verdicts = {made.verdict, *(gpu.verdict for gpu in gpus)}
    if others:
        verdicts.add(Verdict.UNSATISFIABLE)
    problems = (*made.problems, *others)
    return replace(made, verdict=worst(verdicts), gpus=tuple(gpus), problems=problems)
