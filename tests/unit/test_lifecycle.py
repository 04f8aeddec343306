"""The life of an attempt: events in, instructions out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.checkpoint import DrainStep
from airflow_provider.runtime.errors import IllegalTransitionError
from airflow_provider.runtime.failures import Failure, FailureClass
from airflow_provider.runtime.lifecycle import (
    AtEnd,
    CallFinish,
    CancelRequested,
    Close,
    Closed,
    CommitEpochs,
    EpochsCommitted,
    Failed,
    FinalPut,
    FinishDone,
    IntentStored,
    JobPhase,
    Lifecycle,
    PlanDrain,
    PutFinal,
    QueryEnded,
    QueryPhase,
    Run,
    Started,
    StartQuery,
    StoreDrainIntent,
)

BROKEN = Failure(FailureClass.RECOVERABLE, "disk on fire", "OSError", "q1", "host")
LATER = Failure(FailureClass.RECOVERABLE, "another", "OSError", None, "host")
NOTHING, RUN_OPEN, PLAN, RUN_PLANNED, DONE = (
    DrainStep.NOTHING,
    DrainStep.RUN_OPEN,
    DrainStep.PLAN,
    DrainStep.RUN_PLANNED,
    DrainStep.DONE,
)

ONE, THREE = ("q1",), ("q1", "q2", "q3")
FINISH = [
    (FinishDone(), [CommitEpochs()]),
    (EpochsCommitted(), [PutFinal(AtEnd.DRAIN)]),
    (FinalPut(), [Close()]),
    (Closed(), []),
]
STORIES = {
    "one query drains": (
        ONE,
        AtEnd.DRAIN,
        [
            (Started(intended=False), [StartQuery("q1", Run.INPUT)]),
            (QueryEnded("q1", PLAN), [CommitEpochs(), StoreDrainIntent()]),
            (EpochsCommitted(), []),
            (IntentStored({"q1": PLAN}), [PlanDrain("q1"), StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "three queries drain, each in its own time": (
        THREE,
        AtEnd.DRAIN,
        [
            (
                Started(intended=False),
                [StartQuery(name, Run.INPUT) for name in THREE],
            ),
            (QueryEnded("q2", PLAN), []),
            (QueryEnded("q1", PLAN), []),
            (QueryEnded("q3", NOTHING), [CommitEpochs(), StoreDrainIntent()]),
            (EpochsCommitted(), []),
            (
                IntentStored({"q1": PLAN, "q2": PLAN, "q3": NOTHING}),
                [
                    PlanDrain("q1"),
                    StartQuery("q1", Run.ONE_BATCH),
                    PlanDrain("q2"),
                    StartQuery("q2", Run.ONE_BATCH),
                ],
            ),
            (QueryEnded("q2", DONE), []),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "nothing to drain": (
        ONE,
        AtEnd.DRAIN,
        [
            (Started(intended=False), [StartQuery("q1", Run.INPUT)]),
            (QueryEnded("q1", NOTHING), [CommitEpochs(), StoreDrainIntent()]),
            (EpochsCommitted(), []),
            (IntentStored({"q1": NOTHING}), [CallFinish()]),
            *FINISH,
        ],
    ),
    "suspend": (
        THREE,
        AtEnd.SUSPEND,
        [
            (
                Started(intended=False),
                [StartQuery(name, Run.INPUT) for name in THREE],
            ),
            (QueryEnded("q3", PLAN), []),
            (QueryEnded("q1", PLAN), []),
            (QueryEnded("q2", PLAN), [CommitEpochs()]),
            (EpochsCommitted(), [PutFinal(AtEnd.SUSPEND)]),
            (FinalPut(), [Close()]),
            (Closed(), []),
        ],
    ),
    "restart: the intent is stored, the drain is not planned": (
        ONE,
        AtEnd.DRAIN,
        [
            (Started(intended=True), [StoreDrainIntent()]),
            (IntentStored({"q1": PLAN}), [PlanDrain("q1"), StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: an ordinary batch is open": (
        ONE,
        AtEnd.DRAIN,
        [
            (Started(intended=True), [StoreDrainIntent()]),
            (IntentStored({"q1": RUN_OPEN}), [StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", PLAN), [PlanDrain("q1"), StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: the drain batch is planned": (
        ONE,
        AtEnd.DRAIN,
        [
            (Started(intended=True), [StoreDrainIntent()]),
            (IntentStored({"q1": RUN_PLANNED}), [StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: every query is drained": (
        THREE,
        AtEnd.DRAIN,
        [
            (Started(intended=True), [StoreDrainIntent()]),
            (IntentStored({"q1": DONE, "q2": NOTHING, "q3": DONE}), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: three queries, each elsewhere": (
        THREE,
        AtEnd.DRAIN,
        [
            (Started(intended=True), [StoreDrainIntent()]),
            (
                IntentStored({"q1": DONE, "q2": RUN_PLANNED, "q3": PLAN}),
                [
                    StartQuery("q2", Run.ONE_BATCH),
                    PlanDrain("q3"),
                    StartQuery("q3", Run.ONE_BATCH),
                ],
            ),
            (QueryEnded("q3", DONE), []),
            (QueryEnded("q2", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a drain batch that ended uncommitted runs again": (
        ONE,
        AtEnd.DRAIN,
        [
            (Started(intended=True), [StoreDrainIntent()]),
            (IntentStored({"q1": RUN_PLANNED}), [StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", RUN_PLANNED), [StartQuery("q1", Run.ONE_BATCH)]),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
}


def tell(life: Lifecycle, events) -> tuple[Lifecycle, list]:
    """Feed *events*; return the state after them and all instructions."""
    told = []
    for event in events:
        life, instructions = life.handle(event)
        told.extend(instructions)
    return life, told


def life_in(phase: JobPhase) -> Lifecycle:
    """Return an attempt that has reached *phase* on the way to a drain."""
    life = Lifecycle.of(ONE, AtEnd.DRAIN)
    for event, _ in STORIES["one query drains"][2]:
        if life.phase is phase:
            break
        life, _ = life.handle(event)
    assert phase is life.phase
    return life


@pytest.mark.parametrize("story", STORIES)
def test_each_event_asks_for_the_right_things_in_order(story):
    """
    Through a whole life, every event gives exactly the instructions that follow from it.
    """
    names, at_end, steps = STORIES[story]
    life = Lifecycle.of(names, at_end)

    for event, expected in steps:
        life, instructions = life.handle(event)
        assert expected == list(instructions)

    assert JobPhase.ENDED is life.phase
    assert life.failure is None
    assert not life.cancelled


def test_phases_follow_the_drawing():
    """
    A drain passes through every phase in the order that the module draws.
    """
    life = Lifecycle.of(ONE, AtEnd.DRAIN)
    phases = [life.phase]
    for event, _ in STORIES["one query drains"][2]:
        life, _ = life.handle(event)
        if life.phase is not phases[-1]:
            phases.append(life.phase)

    assert list(JobPhase) == phases


def test_queries_are_seen_through_their_phases():
    """
    Each query's own phase tells where it stands, for progress.
    """
    life = Lifecycle.of(("q1", "q2"), AtEnd.DRAIN)
    assert {"q1": QueryPhase.IDLE, "q2": QueryPhase.IDLE} == life.queries

    life, _ = life.handle(Started(intended=False))
    life, _ = life.handle(QueryEnded("q1", PLAN))
    assert {"q1": QueryPhase.READ, "q2": QueryPhase.READING} == life.queries

    life, _ = tell(life, [QueryEnded("q2", PLAN), IntentStored({"q1": PLAN, "q2": NOTHING})])
    assert {"q1": QueryPhase.DRAINING, "q2": QueryPhase.DRAINED} == life.queries


@pytest.mark.parametrize("phase", JobPhase)
def test_epochs_are_published_at_once_only_while_reading(phase):
    """
    Outside of reading, what Spark commits waits for the instruction to publish it.
    """
    assert (phase is JobPhase.READING) is life_in(phase).publishes


INTERRUPTIBLE = [p for p in JobPhase if p not in {JobPhase.CLOSING, JobPhase.ENDED}]


@pytest.mark.parametrize("phase", INTERRUPTIBLE)
def test_a_failure_closes_from_every_phase(phase):
    """
    A failure leads to close and nothing else, and stays the reason.
    """
    life, instructions = life_in(phase).handle(Failed(BROKEN))

    assert (Close(),) == instructions
    assert JobPhase.CLOSING is life.phase
    assert BROKEN is life.failure

    life, instructions = life.handle(Closed())
    assert () == instructions
    assert JobPhase.ENDED is life.phase


@pytest.mark.parametrize("phase", INTERRUPTIBLE)
def test_a_cancel_closes_from_every_phase(phase):
    """
    A cancel leads to close and nothing else: no finish, no final checkpoint.
    """
    life, instructions = life_in(phase).handle(CancelRequested())

    assert (Close(),) == instructions
    assert JobPhase.CLOSING is life.phase
    assert life.cancelled
    assert life.failure is None


@pytest.mark.parametrize("phase", [JobPhase.CLOSING, JobPhase.ENDED])
@pytest.mark.parametrize("event", [Failed(BROKEN), CancelRequested()])
def test_an_interruption_after_the_end_changes_nothing(phase, event):
    """
    Once the final checkpoint is put, neither a failure nor a cancel takes it back.
    """
    life = life_in(phase)

    assert (life, ()) == life.handle(event)


def test_the_first_reason_stands():
    """
    What fails while a failed attempt closes does not hide why it failed.
    """
    life, _ = life_in(JobPhase.READING).handle(Failed(BROKEN))
    life, instructions = life.handle(Failed(LATER))

    assert () == instructions
    assert BROKEN is life.failure


EVENTS = {
    Started: Started(intended=False),
    QueryEnded: QueryEnded("q1", PLAN),
    IntentStored: IntentStored({"q1": PLAN}),
    FinishDone: FinishDone(),
    EpochsCommitted: EpochsCommitted(),
    FinalPut: FinalPut(),
    Closed: Closed(),
}
LEGAL = {
    JobPhase.OPENED: {Started},
    JobPhase.READING: {QueryEnded},
    JobPhase.DRAINING: {EpochsCommitted, IntentStored, QueryEnded},
    JobPhase.FINISHING: {FinishDone},
    JobPhase.COMMITTING: {EpochsCommitted},
    JobPhase.SEALING: {FinalPut},
    JobPhase.CLOSING: {Closed},
    JobPhase.ENDED: set(),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("phase", JobPhase)
def test_an_event_out_of_place_is_a_bug(phase, event):
    """
    Every pair of phase and event is either in the table or refused, naming both.
    """
    life = life_in(phase)
    if type(event) in LEGAL[phase]:
        life.handle(event)
        return

    with pytest.raises(IllegalTransitionError) as raised:
        life.handle(event)
    assert type(event).__name__ in str(raised.value)
    assert phase.value in str(raised.value)


def test_handling_an_event_leaves_the_state_before_it_alone():
    """
    A state is a value: the next one is another.
    """
    before = Lifecycle.of(ONE, AtEnd.DRAIN)
    before.handle(Started(intended=False))

    assert Lifecycle.of(ONE, AtEnd.DRAIN) == before


class World:
    """Answers instructions as a driver would, with Spark's answers drawn at random."""

    def __init__(self, draw, names, at_end, *, intended) -> None:
        self.draw = draw
        self.life = Lifecycle.of(names, at_end)
        self.running: set[str] = set()
        self.told: list = []
        self.interruptions = 2
        # What each query's logs ask for; a drain moves it on.
        first = [NOTHING, PLAN, RUN_OPEN] + ([RUN_PLANNED, DONE] if intended else [])
        self.steps = {name: draw(st.sampled_from(first)) for name in names}
        self.answers: list = [Started(intended=intended)]

    def choose(self):
        """Take the next event: an answer in order, a query's end, or an interruption."""
        if self.interruptions and self.draw(st.integers(0, 9)) == 9:
            self.interruptions -= 1
            return self.draw(st.sampled_from([Failed(BROKEN), CancelRequested()]))
        if self.answers:
            return self.answers.pop(0)
        name = self.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(name)
        return QueryEnded(name, self.steps[name])

    def live(self) -> list:
        while self.life.phase is not JobPhase.ENDED:
            self.life, instructions = self.life.handle(self.choose())
            for instruction in instructions:
                self.told.append(instruction)
                self.carry_out(instruction)
        return self.told

    def carry_out(self, instruction) -> None:
        answers = {
            CommitEpochs: EpochsCommitted(),
            StoreDrainIntent: IntentStored(dict(self.steps)),
            CallFinish: FinishDone(),
            PutFinal: FinalPut(),
            Close: Closed(),
        }
        if isinstance(instruction, PlanDrain):
            assert PLAN is self.steps[instruction.query]
            self.steps[instruction.query] = RUN_PLANNED
        elif isinstance(instruction, StartQuery):
            self.start(instruction)
        else:
            if isinstance(instruction, Close):
                self.answers.clear()
                self.running.clear()
            self.answers.append(answers[type(instruction)])

    def start(self, instruction: StartQuery) -> None:
        assert instruction.query not in self.running
        self.running.add(instruction.query)
        if instruction.how is Run.INPUT:  # an open batch is run first, by any trigger
            if self.steps[instruction.query] is RUN_OPEN:
                self.steps[instruction.query] = PLAN
            return
        after = {RUN_OPEN: PLAN, RUN_PLANNED: DONE}
        self.steps[instruction.query] = after[self.steps[instruction.query]]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_in_any_life_the_order_holds(data):
    """
    Whatever happens in whatever order: the final checkpoint follows the last commit, which follows
    finish, which follows the drain of every query; finish is never called on suspend, and close
    exactly once.
    """
    names = data.draw(st.sampled_from([ONE, ("q1", "q2"), THREE]))
    at_end = data.draw(st.sampled_from(list(AtEnd)))
    intended = at_end is AtEnd.DRAIN and data.draw(st.booleans())
    world = World(data.draw, names, at_end, intended=intended)

    told = world.live()
    kinds = [type(instruction) for instruction in told]

    assert 1 == kinds.count(Close)
    assert Close is kinds[-1]
    assert kinds.count(PutFinal) <= 1
    assert kinds.count(CallFinish) <= (1 if at_end is AtEnd.DRAIN else 0)
    assert at_end is AtEnd.DRAIN or not {PlanDrain, StoreDrainIntent} & set(kinds)
    if PlanDrain in kinds:
        assert kinds.index(StoreDrainIntent) < kinds.index(PlanDrain)
    if CallFinish in kinds:
        assert set(world.steps.values()) <= {NOTHING, DONE}
        assert not {StartQuery, PlanDrain} & set(kinds[kinds.index(CallFinish) :])
    if PutFinal in kinds:
        tail = [CommitEpochs, PutFinal, Close]
        expected = [CallFinish, *tail] if at_end is AtEnd.DRAIN else tail
        assert expected == kinds[-len(expected) :]
    elif world.life.failure is None:
        assert world.life.cancelled
