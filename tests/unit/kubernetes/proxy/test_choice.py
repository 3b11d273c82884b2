"""Of an instance's claims on several controllers one is used: by examples, and by two proxies in any order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.proxy.observed import ClaimPhase, ObservedClaim
from moorings.kubernetes.proxy.plan import (
    ActionType,
    ClaimAction,
    DesiredState,
    InstanceClaims,
    ObservedController,
    plan_instance,
)
from tests.sampling import examples

ONE, TWO = "pod1:8090", "pod2:8090"
READY = ClaimPhase.READY
BOTH = (ObservedController(ONE), ObservedController(TWO))


def known(controller: str, phase: ClaimPhase, ident: str = "claim-a", **more: object) -> ObservedClaim:
    return ObservedClaim(controller=controller, id=ident, owner="o", size=4, phase=phase, **more)  # type: ignore[arg-type]


def book(*claims: ObservedClaim, wish: DesiredState = DesiredState.WANTED, **more: object) -> InstanceClaims:
    made = InstanceClaims(desired=wish, **more)  # type: ignore[arg-type]
    for number, claim in enumerate(claims):
        made.observe(claim, number + 1.0)
    return made


def test_with_one_controller_it_waits_there_at_once() -> None:
    assert plan_instance(book(), [ObservedController(ONE)]).actions == (ClaimAction(ActionType.CLAIM_QUEUED, ONE),)


def test_they_are_tried_in_order_and_then_it_waits_in_all() -> None:
    asked = book()
    assert plan_instance(asked, BOTH).actions == (ClaimAction(ActionType.CLAIM_NOW, ONE),)
    asked.full_controllers.add(ONE)
    assert plan_instance(asked, BOTH).actions == (ClaimAction(ActionType.CLAIM_NOW, TWO),)
    asked.full_controllers.add(TWO)
    assert plan_instance(asked, BOTH).actions == (
        ClaimAction(ActionType.CLAIM_QUEUED, ONE),
        ClaimAction(ActionType.CLAIM_QUEUED, TWO),
    )


def test_one_that_does_not_answer_is_asked_when_it_is_back() -> None:
    waiting = book(known(TWO, ClaimPhase.WAITING))
    assert plan_instance(waiting, [ObservedController(ONE, is_reachable=False), ObservedController(TWO)]).actions == ()
    assert plan_instance(waiting, BOTH).actions == (ClaimAction(ActionType.CLAIM_QUEUED, ONE),)


def test_what_waits_elsewhere_is_withdrawn_before_anything_is_given() -> None:
    granted = book(known(ONE, ClaimPhase.READY, granted_at="1"), known(TWO, ClaimPhase.WAITING, "claim-b"))
    granted.listed_at[TWO] = 99
    chosen = plan_instance(granted, BOTH)
    assert (chosen.may_publish_binding, chosen.actions) == (
        False,
        (ClaimAction(ActionType.RELEASE_IF_WAITING, TWO, "claim-b"),),
    )
    granted.observe(known(TWO, ClaimPhase.ENDED, "claim-b"), 3)
    assert plan_instance(granted, BOTH).may_publish_binding


def test_of_two_that_are_held_the_first_granted_stays() -> None:
    double = book(
        known(ONE, ClaimPhase.READY, granted_at="2"), known(TWO, ClaimPhase.GRANTED, "claim-b", granted_at="1")
    )
    chosen = plan_instance(double, BOTH)
    assert chosen.winner is not None
    assert chosen.winner.controller == TWO
    assert ClaimAction(ActionType.RELEASE, ONE, "claim-a") in chosen.actions
    double.published_claim = (ONE, "claim-a")
    assert plan_instance(double, BOTH).actions == (ClaimAction(ActionType.RELEASE, TWO, "claim-b"),), (
        "what was given out is never taken back"
    )


def test_the_others_are_looked_at_after_the_grant_was_seen() -> None:
    held = book(known(ONE, ClaimPhase.READY, granted_at="1"))
    held.listed_at[TWO] = 0.5  # before
    assert plan_instance(held, BOTH).actions == (ClaimAction(ActionType.LIST_CLAIMS, TWO),)
    held.apply_listing(TWO, 1.5, [], 2.0)
    assert plan_instance(held, BOTH).may_publish_binding


@pytest.mark.parametrize(
    ("standing", "young", "doubt", "gives"),
    [
        (ObservedController(TWO, is_reachable=False, is_quiet=True, was_listed=True), False, False, True),
        (ObservedController(TWO, is_reachable=False, is_quiet=True, was_listed=False), False, False, False),
        (ObservedController(TWO, is_reachable=False, is_quiet=True, was_listed=False), True, False, True),
        (ObservedController(TWO, is_reachable=False, is_quiet=True, was_listed=True), True, True, False),
        (ObservedController(TWO, is_reachable=False, is_quiet=False, was_listed=True), True, False, False),
    ],
)
def test_where_nobody_answers_a_claim_must_be_ruled_out(
    standing: ObservedController, young: bool, doubt: bool, gives: bool
) -> None:
    held = book(known(ONE, ClaimPhase.READY), is_new_job=young, uncertain_controllers={TWO} if doubt else set())
    chosen = plan_instance(held, [ObservedController(ONE), standing])
    assert chosen.may_publish_binding is gives
    assert gives or TWO in chosen.why


def test_what_ran_before_this_process_goes_on_whoever_is_away() -> None:
    held = book(known(ONE, ClaimPhase.READY), settled={(ONE, "claim-a")})
    assert plan_instance(
        held, [ObservedController(ONE), ObservedController(TWO, is_reachable=False, is_quiet=True, was_listed=False)]
    ).may_publish_binding


def test_what_can_be_nowhere_has_failed_and_says_why() -> None:
    refused = book(refused={ONE: ("claim.too_large", "pod1: no"), TWO: ("claim.too_large", "pod2: no")})
    assert plan_instance(refused, BOTH).failed == ("claim.too_large", "pod2: no")
    assert plan_instance(refused, [*BOTH, ObservedController("pod3:8090", is_reachable=False)]).failed is None


def test_a_claim_that_failed_is_tried_elsewhere() -> None:
    broken = book(
        known(ONE, ClaimPhase.GRANTED), known(ONE, ClaimPhase.ENDED, failed=True, message="three blocks broke")
    )
    assert plan_instance(broken, BOTH).actions == (ClaimAction(ActionType.CLAIM_QUEUED, TWO),)


@pytest.mark.parametrize(
    ("code", "retryable", "final", "full", "refused"),
    [
        ("claim.no_room", True, True, {ONE}, {}),
        ("controller.busy", True, False, set(), {}),
        ("claim.too_large", False, True, set(), {ONE: ("claim.too_large", f"{ONE}: no")}),
    ],
)
def test_a_refused_request_leaves_no_doubt(
    code: str, retryable: bool, final: bool, full: set[str], refused: dict[str, tuple[str, str]]
) -> None:
    asked = book(uncertain_controllers={ONE, TWO})
    assert asked.apply_refusal(ONE, MooringsError(code, "no", retryable=retryable)) is final
    assert (asked.uncertain_controllers, asked.full_controllers, asked.refused) == ({TWO}, full, refused)


def test_a_binding_that_came_too_late_is_not_given_out() -> None:
    held = book(winner := known(ONE, ClaimPhase.READY))
    held.observe(known(ONE, ClaimPhase.WAITING, attempt=1), 2.0)
    assert not held.mark_published(winner), "another attempt"
    held.observe(again := known(ONE, ClaimPhase.READY, attempt=1), 3.0)
    held.desired = DesiredState.RELEASED
    assert not held.mark_published(again), "it is released"
    held.desired = DesiredState.WANTED
    assert held.mark_published(again)
    assert held.published_claim == (ONE, "claim-a")


def test_the_end_is_waited_for_also_where_nobody_answers() -> None:
    over = book(known(ONE, ClaimPhase.READY), known(TWO, ClaimPhase.WAITING, "claim-b"), wish=DesiredState.RELEASED)
    chosen = plan_instance(over, [ObservedController(ONE), ObservedController(TWO, is_reachable=False)])
    assert (chosen.actions, chosen.is_finished) == ((ClaimAction(ActionType.RELEASE, ONE, "claim-a"),), False)
    over.observe(known(ONE, ClaimPhase.ENDED), 3)
    assert not plan_instance(over, [ObservedController(ONE), ObservedController(TWO, is_reachable=False)]).is_finished
    over.apply_listing(TWO, 9.0, [], 9.5)
    assert plan_instance(over, BOTH).is_finished


def test_what_somebody_else_has_ended_is_not_made_again_unasked() -> None:
    ended = book(known(ONE, ClaimPhase.READY), known(ONE, ClaimPhase.ENDED))
    assert plan_instance(ended, BOTH).is_finished


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("phase", [ClaimPhase.WAITING, ClaimPhase.READY])
def test_a_claim_is_not_let_go_because_its_controller_has_two_names(given: bool, phase: ClaimPhase) -> None:
    held = book(known(ONE, ClaimPhase.READY, granted_at="1"), known(TWO, phase, granted_at="1"))
    held.listed_at = {ONE: 99, TWO: 99}
    if given:
        held.published_claim = (ONE, "claim-a")
    for standings in (BOTH, (ObservedController(TWO), ObservedController(ONE, is_configured=False))):
        chosen = plan_instance(held, standings)
        fetch = (
            ClaimAction(ActionType.FETCH, chosen.winner.controller, "claim-a") if chosen.winner is not None else None
        )
        assert (chosen.actions, chosen.may_publish_binding) == (() if given else (fetch,), True)
    held.observe(known(ONE, ClaimPhase.ENDED), 5)
    assert held.published_claim == ((TWO, "claim-a") if given else None)


def test_what_was_learned_under_one_name_is_known_under_the_other() -> None:
    held = book(
        known(ONE, ClaimPhase.READY),
        published_claim=(ONE, "claim-a"),
        uncertain_controllers={ONE},
        settled={(ONE, "claim-a")},
    )
    held.observe(known(TWO, ClaimPhase.GRANTED), 9)
    held.listed_at = {ONE: 7.0, TWO: 3.0}
    held.rename_controller(ONE, TWO)
    assert {key: one.phase for key, one in held.claims.items()} == {(TWO, "claim-a"): ClaimPhase.READY}
    assert held.claims[TWO, "claim-a"].controller == TWO
    assert held.first_seen_at == {(TWO, "claim-a"): 1.0}
    assert (held.published_claim, held.uncertain_controllers, held.listed_at) == ((TWO, "claim-a"), {TWO}, {TWO: 7.0})
    assert held.settled == {(TWO, "claim-a")}


# -- two proxies, stale views, lost answers, restarts ----------------------------------------------------------------


@dataclass
class Controller:
    """What a controller does with the claims of one owner."""

    name: str
    up: bool = True
    claims: list[ObservedClaim] = field(default_factory=list)

    def unended(self) -> list[ObservedClaim]:
        return [one for one in self.claims if one.phase is not ClaimPhase.ENDED]

    def put(self, found: ObservedClaim) -> ObservedClaim:
        self.claims = [one if one.id != found.id else found for one in self.claims]
        return found


@dataclass
class Call:
    """One deed on its way: sent, then done, then answered."""

    deed: ClaimAction
    began: float
    done: bool = False
    answer: list[ObservedClaim] = field(default_factory=list)
    refused: bool = False


@dataclass
class Proxy:
    book: InstanceClaims
    away: set[str]
    seen: set[str]
    calls: list[Call] = field(default_factory=list)


class Race:
    """One instance that two proxies work on, on two controllers, each with room for one or none."""

    PROXIES = 2
    OUTAGES = False

    def __init__(self, room: tuple[bool, bool]) -> None:
        self.time = 0.0
        self.controllers = {name: Controller(name) for name in (ONE, TWO)}
        self.room = dict(zip(self.controllers, room, strict=True))
        self.given: set[str] = set()
        self.proxies = [
            Proxy(InstanceClaims(desired=DesiredState.WANTED), set(), {ONE, TWO}) for _ in range(self.PROXIES)
        ]

    def now(self) -> float:
        self.time += 1
        return self.time

    def standings(self, proxy: Proxy) -> list[ObservedController]:
        return [
            ObservedController(
                name,
                is_reachable=name not in proxy.away,
                is_quiet=name in proxy.away and not self.controllers[name].up,
                was_listed=name in proxy.seen,
            )
            for name in self.controllers
        ]

    def go_on(self, which: int, number: int, lost: int) -> None:
        """One proxy's next step: it decides, what it asked arrives, or an answer comes back."""
        proxy = self.proxies[which % self.PROXIES]
        waiting = [call for call in proxy.calls if not call.done and self.controllers[call.deed.controller].up]
        if not proxy.calls:
            self.decide(which)
        elif waiting and (number % 2 or len(waiting) == len(proxy.calls)):
            self._do(waiting[number % len(waiting)])
        else:
            self.answer(which, number, lost)

    def decide(self, which: int) -> None:
        proxy = self.proxies[which % self.PROXIES]
        if proxy.calls:
            return
        choice = plan_instance(proxy.book, self.standings(proxy))
        proxy.calls = [Call(deed, self.now()) for deed in choice.actions]

    def _do(self, call: Call) -> None:
        controller = self.controllers[call.deed.controller]
        if not controller.up:
            return
        call.done = True
        match call.deed.type:
            case ActionType.LIST_CLAIMS:
                call.answer = controller.unended()
            case ActionType.FETCH:  # only a READY claim has a binding
                call.answer = [one for one in controller.claims if (one.id, one.phase) == (call.deed.claim, READY)]
            case ActionType.CLAIM_NOW | ActionType.CLAIM_QUEUED:
                self._make(controller, call)
            case ActionType.RELEASE_IF_WAITING | ActionType.RELEASE:
                claim = next(one for one in controller.claims if one.id == call.deed.claim)
                if call.deed.type is ActionType.RELEASE and claim.held:
                    assert claim.id not in self.given, "a job lost its partition"
                if claim.phase is ClaimPhase.WAITING:
                    claim = controller.put(replace(claim, phase=ClaimPhase.ENDED))
                elif call.deed.type is ActionType.RELEASE and claim.phase < ClaimPhase.RELEASING:
                    claim = controller.put(replace(claim, phase=ClaimPhase.RELEASING))
                call.answer = [claim]

    def _make(self, controller: Controller, call: Call) -> None:
        waits = call.deed.type is ActionType.CLAIM_QUEUED
        if controller.unended():  # the same key
            call.answer = controller.unended()
            return
        if not waits and not self.room[controller.name]:
            call.refused = True
            return
        ident = f"{controller.name}/{len(controller.claims)}"
        controller.claims.append(known(controller.name, ClaimPhase.WAITING, ident))
        if self.room[controller.name]:
            self._grant(controller)
        call.answer = controller.unended()

    def _grant(self, controller: Controller) -> None:
        for claim in controller.claims:
            if claim.phase is ClaimPhase.WAITING:
                controller.put(replace(claim, phase=ClaimPhase.GRANTED, granted_at=f"{self.now():09.0f}"))

    def answer(self, which: int, number: int, lost: int) -> None:
        proxy = self.proxies[which % self.PROXIES]
        if not proxy.calls:
            return
        call = proxy.calls[number % len(proxy.calls)]
        if not call.done and self.controllers[call.deed.controller].up:
            return
        proxy.calls.remove(call)
        name = call.deed.controller
        making = call.deed.type in (ActionType.CLAIM_NOW, ActionType.CLAIM_QUEUED)
        if not call.done or lost == 0:
            proxy.away.add(name)
            if making:
                proxy.book.uncertain_controllers.add(name)
        elif call.deed.type is ActionType.LIST_CLAIMS:
            proxy.book.apply_listing(name, call.began, call.answer, self.now())
        elif call.deed.type is ActionType.FETCH:
            self.given |= {one.id for one in call.answer if proxy.book.mark_published(one)}
        elif call.refused:
            proxy.book.full_controllers.add(name)
            proxy.book.uncertain_controllers.discard(name)
        else:
            for one in call.answer:
                proxy.book.observe(one, self.now())
            if making:
                proxy.book.uncertain_controllers.discard(name)

    def hear(self, which: int, name: str) -> None:
        """A list, or events up to now."""
        proxy = self.proxies[which % self.PROXIES]
        controller = self.controllers[name]
        if controller.up:
            proxy.book.apply_listing(name, self.now(), controller.unended(), self.now())
            proxy.away.discard(name)
            proxy.seen.add(name)
        else:
            proxy.away.add(name)

    def have_room(self, name: str, room: bool) -> None:
        self.room[name] = room
        if room and self.controllers[name].up:
            self._grant(self.controllers[name])

    def become_ready(self) -> None:
        for controller in self.controllers.values():
            self._change(controller)

    def _change(self, controller: Controller) -> None:
        for claim in controller.claims:
            if claim.phase is ClaimPhase.GRANTED:
                controller.put(replace(claim, phase=ClaimPhase.READY))
            elif claim.phase is ClaimPhase.RELEASING:
                controller.put(replace(claim, phase=ClaimPhase.ENDED))

    def outage(self, name: str, up: bool) -> None:
        self.controllers[name].up = up
        for proxy in self.proxies:  # what was sent to it does not arrive a day later
            for call in [call for call in proxy.calls if call.deed.controller == name and not call.done and not up]:
                proxy.calls.remove(call)
                proxy.away.add(name)
                if call.deed.type in (ActionType.CLAIM_NOW, ActionType.CLAIM_QUEUED):
                    proxy.book.uncertain_controllers.add(name)

    def restart(self, which: int, wanted: bool) -> None:
        """Killed, with calls under way that arrive or do not; the next one begins with lists."""
        which %= self.PROXIES
        for call in self.proxies[which].calls[:1]:
            self._do(call) if not call.done else None
        up = {name for name, one in self.controllers.items() if one.up}
        made = Proxy(
            InstanceClaims(desired=DesiredState.WANTED if wanted else DesiredState.UNKNOWN), {ONE, TWO} - up, up
        )
        self.proxies[which] = made
        for name in sorted(up):
            found = self.controllers[name].unended()
            made.book.settled |= {(name, one.id) for one in found if one.id in self.given}
            made.book.apply_listing(name, self.now(), found, self.now())

    def one_is_used(self) -> None:
        held = {one.id for each in self.controllers.values() for one in each.claims if one.held}
        assert len(held & self.given) <= 1, "two partitions of one instance are in use"

    def end(self) -> None:
        """When all is well again one is given out, and nothing else is left."""
        for controller in self.controllers.values():
            controller.up = True
        for _ in range(30):
            for name in self.controllers:
                self.have_room(name, True)
                self._change(self.controllers[name])
            for which, proxy in enumerate(self.proxies):
                for name in self.controllers:
                    self.hear(which, name)
                if not proxy.book.claims and not proxy.calls:
                    proxy.book = InstanceClaims(desired=DesiredState.WANTED)  # what was over is asked for again
                self.decide(which)
                while proxy.calls:
                    self._do(proxy.calls[0]) if not proxy.calls[0].done else None
                    self.answer(which, 0, 1)
            self.one_is_used()
        left = [one for each in self.controllers.values() for one in each.unended()]
        assert [one.phase for one in left] == [ClaimPhase.READY], left
        assert left[0].id in self.given


class Outages(Race):
    """One proxy at a time, and controllers that come and go."""

    PROXIES = 1
    OUTAGES = True


def play(race: Race, chance: Random) -> Race:
    """Some life of an instance, checked at every step."""
    names = (ONE, TWO)
    for _ in range(chance.choice((20, 60, 120))):
        happens, which, name = chance.random(), chance.randrange(2), chance.choice(names)
        if happens < 0.7:
            race.go_on(which, chance.randrange(4), chance.randrange(12))
        elif happens < 0.78:
            race.hear(which, name)
        elif happens < 0.86:
            race.have_room(name, chance.random() < 0.7)
        elif happens < 0.94:
            race.become_ready()
        elif happens < 0.97 and race.OUTAGES:
            race.outage(name, chance.random() < 0.5)
        elif happens > 0.98:
            race.restart(which, chance.random() < 0.7)
        race.one_is_used()
    race.end()
    return race


@pytest.mark.parametrize("kind", [Race, Outages])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=examples(1500), deadline=None)
def test_one_is_used_and_nothing_is_left_over_whatever_happens(kind: type[Race], seed: int) -> None:
    chance = Random(seed)
    play(kind((chance.random() < 0.7, chance.random() < 0.7)), chance)


def test_the_race_comes_to_double_grants() -> None:
    """Else the test above would prove nothing."""
    races = [play(Race((True, True)), Random(seed)) for seed in range(300)]
    doubles = [
        race for race in races if all(any(c.granted_at for c in one.claims) for one in race.controllers.values())
    ]
    assert len(doubles) > 20


def test_a_claim_that_waits_again_is_given_out_again_and_not_before_others_were_looked_at() -> None:
    lent = book(known(ONE, ClaimPhase.READY, granted_at="1"))
    lent.published_claim, lent.listed_at[TWO] = (ONE, "claim-a"), 9.0
    lent.observe(known(ONE, ClaimPhase.RECLAIMING, granted_at="1"), 10.0)
    chosen = plan_instance(lent, BOTH)
    assert (chosen.may_publish_binding, chosen.winner is not None and chosen.winner.phase) == (
        True,
        ClaimPhase.RECLAIMING,
    )
    lent.observe(known(ONE, ClaimPhase.RELEASING), 11.0)
    assert plan_instance(lent, BOTH).actions == (), "it is being removed"
    lent.observe(known(ONE, ClaimPhase.WAITING, attempt=1), 12.0)
    assert lent.published_claim is None
    assert lent.held_at is None
    assert plan_instance(lent, BOTH).actions == (ClaimAction(ActionType.CLAIM_QUEUED, TWO),)
    lent.observe(known(ONE, ClaimPhase.READY, attempt=1, granted_at="2"), 13.0)
    chosen = plan_instance(lent, BOTH)
    assert (chosen.may_publish_binding, chosen.actions) == (False, (ClaimAction(ActionType.LIST_CLAIMS, TWO),)), (
        "another may have come there meanwhile"
    )
    lent.apply_listing(TWO, 14.0, [], 14.0)
    assert plan_instance(lent, BOTH).may_publish_binding
