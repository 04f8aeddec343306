"""The life of an attempt: events in, instructions out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider.runtime.checkpoint.drain_step import DrainStep, StartMode
from airflow_provider.runtime.driver.lifecycle import Lifecycle
from airflow_provider.runtime.driver.lifecycle.events import (
    AtEnd,
    CallFinish,
    CancelRequested,
    Close,
    Closed,
    CommitEpochs,
    EndSources,
    EpochsCommitted,
    Failed,
    FinalPut,
    FinishDone,
    HaltQuery,
    IntentStored,
    JobPhase,
    PlanDrain,
    PublishEpochs,
    PutFinal,
    QueryEnded,
    QueryFailed,
    QueryPhase,
    RestartDue,
    RestartQuery,
    SavepointFailed,
    SavepointTaken,
    Started,
    StartQuery,
    Stop,
    StopQuery,
    StopRequested,
    StoreDrainIntent,
    TakeSavepoint,
)
from airflow_provider.runtime.errors import IllegalTransitionError
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from tests.present import present

BROKEN = Failure(FailureClass.RECOVERABLE, "disk on fire", "OSError", "q1", "host")
LATER = Failure(FailureClass.RECOVERABLE, "another", "OSError", None, "host")
NOTHING, PLAN, DONE = DrainStep.NOTHING, DrainStep.PLAN, DrainStep.DONE
RUN_OPEN, RUN_PLANNED = DrainStep.RUN_OPEN, DrainStep.RUN_PLANNED

ONE, THREE = ("q1",), ("q1", "q2", "q3")
KEEP, KEEP_SAVED = Stop(AtEnd.SUSPEND, savepoint=False), Stop(AtEnd.SUSPEND, savepoint=True)
PAUSE = Stop(AtEnd.SUSPEND, savepoint=True, keeps_run=True)
FLUSH, FLUSH_SAVED = Stop(AtEnd.DRAIN, savepoint=False), Stop(AtEnd.DRAIN, savepoint=True)


CLOSED = [(FinalPut(), [Close()]), (Closed(), [])]


def start(*names, how=StartMode.INPUT):
    return [StartQuery(name, how) for name in names]


def end_of(query):
    """What a query's last row asks for, when the job ends for good."""
    return [PublishEpochs(query), StoreDrainIntent(query)]


def planned(query):
    return [PlanDrain(query), StartQuery(query, StartMode.ONE_BATCH)]


def drains(query):
    """Give a query's last row, and the plan of its drain."""
    return [(QueryEnded(query, PLAN), end_of(query)), (IntentStored(query, PLAN), planned(query))]


def sealed(at_end):
    return [
        (EpochsCommitted(), [PutFinal(at_end)]),
        *CLOSED,
    ]


FINISH = [(FinishDone(), [CommitEpochs()]), *sealed(AtEnd.DRAIN)]
SAVED = [
    (EpochsCommitted(), [TakeSavepoint()]),
    (SavepointTaken(), [PutFinal(AtEnd.SUSPEND)]),
    *CLOSED,
]
CHAIN = {"q2": ("q1",), "q3": ("q2",)}


def a_job(names=ONE, at_end=AtEnd.DRAIN, *, upstream=None, continuous=False, bounded=()):
    return Lifecycle.of(names, at_end, upstream=upstream, continuous=continuous, bounded=bounded)


A_STREAM = {"at_end": AtEnd.SUSPEND, "continuous": True}
STORIES = {
    "one query drains": (
        a_job(),
        [
            (Started(), start("q1")),
            *drains("q1"),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a query is started until it finds no more, then drains": (
        a_job(),
        [
            (Started(), start("q1")),
            (QueryEnded("q1", PLAN, has_more=True), start("q1")),
            (QueryEnded("q1", PLAN, has_more=True), start("q1")),
            *drains("q1"),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a query that may find more is stopped": (
        a_job(ONE, **A_STREAM),
        [
            (Started(), start("q1")),
            (StopRequested(KEEP), [HaltQuery("q1")]),
            (QueryEnded("q1", PLAN, has_more=True), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "rows wait for a later watermark than the first of the drain": (
        a_job(),
        [
            (Started(), start("q1")),
            *drains("q1"),
            (QueryEnded("q1", PLAN), planned("q1")),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "some sources of a stream end, others go on": (
        a_job(ONE, **A_STREAM),
        [
            (Started(mixed=ONE), start("q1", how=StartMode.AVAILABLE)),
            (QueryEnded("q1", PLAN), [EndSources("q1"), *start("q1")]),
            (StopRequested(KEEP), [HaltQuery("q1")]),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "a stream is stopped before its sources have ended, and its savepoint fails": (
        a_job(ONE, **A_STREAM),
        [
            (Started(mixed=ONE), start("q1", how=StartMode.AVAILABLE)),
            (StopRequested(KEEP_SAVED), [HaltQuery("q1")]),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            (EpochsCommitted(), [TakeSavepoint()]),
            (SavepointFailed(), start("q1", how=StartMode.AVAILABLE)),
            (QueryEnded("q1", PLAN), [EndSources("q1"), *start("q1")]),
            (StopRequested(KEEP), [HaltQuery("q1")]),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "some sources of a slice end, and it goes on to what others have": (
        a_job(ONE, AtEnd.SUSPEND),
        [
            (Started(mixed=ONE), start("q1", how=StartMode.AVAILABLE)),
            (QueryEnded("q1", PLAN), [EndSources("q1"), *start("q1")]),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "some sources of a slice end, and the drain ends all": (
        a_job(ONE),
        [
            (Started(mixed=ONE), start("q1", how=StartMode.AVAILABLE)),
            (QueryEnded("q1", PLAN), [EndSources("q1"), *end_of("q1")]),
            (IntentStored("q1", PLAN), planned("q1")),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a bounded query drains at its end, and a stream beside it goes on": (
        a_job(("q1", "q2"), **A_STREAM, bounded={"q1"}),
        [
            (Started(), [*start("q1", how=StartMode.AVAILABLE), *start("q2")]),
            *drains("q1"),
            (QueryEnded("q1", DONE), []),
            (StopRequested(KEEP), [HaltQuery("q2")]),
            (QueryEnded("q2", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "a bounded query drains while the stream beside it is stopped": (
        a_job(("q1", "q2"), **A_STREAM, bounded={"q1"}),
        [
            (Started(), [*start("q1", how=StartMode.AVAILABLE), *start("q2")]),
            (QueryEnded("q1", PLAN), end_of("q1")),
            (StopRequested(KEEP), [HaltQuery("q2")]),
            (QueryEnded("q2", PLAN), []),
            (IntentStored("q1", PLAN), planned("q1")),
            (QueryEnded("q1", DONE), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "in a stream, what a bounded query writes ends after it": (
        a_job(THREE, **A_STREAM, upstream={"q2": ("q1",)}, bounded={"q1", "q2"}),
        [
            (Started(), [*start("q1", how=StartMode.AVAILABLE), *start("q3")]),
            (QueryEnded("q1", NOTHING), end_of("q1")),
            (
                IntentStored("q1", NOTHING),
                [PublishEpochs("q1"), *start("q2", how=StartMode.AVAILABLE)],
            ),
            (QueryEnded("q2", NOTHING), end_of("q2")),
            (IntentStored("q2", NOTHING), []),
            (StopRequested(KEEP), [HaltQuery("q3")]),
            (QueryEnded("q3", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "three queries drain, each as soon as it has read its last row": (
        a_job(THREE),
        [
            (Started(), start(*THREE)),
            *drains("q2"),
            *drains("q1"),
            (QueryEnded("q2", DONE), []),
            (QueryEnded("q3", NOTHING), end_of("q3")),
            (IntentStored("q3", NOTHING), []),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a chain: each reads when the one before it has ended and is published": (
        a_job(THREE, upstream=CHAIN),
        [
            (Started(), start("q1")),
            *drains("q1"),
            (QueryEnded("q1", DONE), [PublishEpochs("q1"), *start("q2", how=StartMode.AVAILABLE)]),
            (QueryEnded("q2", NOTHING), end_of("q2")),
            (
                IntentStored("q2", NOTHING),
                [PublishEpochs("q2"), *start("q3", how=StartMode.AVAILABLE)],
            ),
            *drains("q3"),
            (QueryEnded("q3", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a chain is suspended at the end of data": (
        a_job(("q1", "q2"), AtEnd.SUSPEND, upstream={"q2": ("q1",)}),
        [
            (Started(), start("q1")),
            (QueryEnded("q1", PLAN), [PublishEpochs("q1"), *start("q2", how=StartMode.AVAILABLE)]),
            (QueryEnded("q2", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "suspend": (
        a_job(THREE, AtEnd.SUSPEND),
        [
            (Started(), start(*THREE)),
            (QueryEnded("q3", PLAN), []),
            (QueryEnded("q1", PLAN), []),
            (QueryEnded("q2", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "stopped without drain: every query ends its batch": (
        a_job(("q1", "q2"), upstream={"q2": ("q1",)}, **A_STREAM),
        [
            (Started(), start("q1", "q2")),
            (StopRequested(KEEP), [HaltQuery("q1"), HaltQuery("q2")]),
            (QueryEnded("q2", RUN_OPEN), []),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "stopped without drain, with a savepoint": (
        a_job(**A_STREAM),
        [
            (Started(), start("q1")),
            (StopRequested(KEEP_SAVED), [HaltQuery("q1")]),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            *SAVED,
        ],
    ),
    "its task was killed: a savepoint, and no final checkpoint": (
        a_job(**A_STREAM),
        [
            (Started(), start("q1")),
            (StopRequested(PAUSE), [HaltQuery("q1")]),
            (QueryEnded("q1", PLAN), [CommitEpochs()]),
            (EpochsCommitted(), [TakeSavepoint()]),
            (SavepointTaken(), [Close()]),
            (Closed(), []),
        ],
    ),
    "its task was killed: without a savepoint nobody goes on either": (
        a_job(("q1", "q2"), AtEnd.DRAIN),
        [
            (Started(), start("q1", "q2")),
            (QueryEnded("q1", NOTHING), end_of("q1")),
            (StopRequested(PAUSE), [HaltQuery("q2")]),
            (IntentStored("q1", PLAN), planned("q1")),
            (QueryEnded("q2", PLAN), []),
            (QueryEnded("q1", DONE), [CommitEpochs()]),
            (EpochsCommitted(), [TakeSavepoint()]),
            (SavepointFailed(), [Close()]),
            (Closed(), []),
        ],
    ),
    "the savepoint fails: the job goes on, and the next stop works": (
        a_job(("q1", "q2"), AtEnd.DRAIN),
        [
            (Started(), start("q1", "q2")),
            (QueryEnded("q1", NOTHING), end_of("q1")),
            (IntentStored("q1", NOTHING), []),
            (StopRequested(KEEP_SAVED), [HaltQuery("q2")]),
            (QueryEnded("q2", PLAN), [CommitEpochs()]),
            (EpochsCommitted(), [TakeSavepoint()]),
            (SavepointFailed(), start("q2")),
            (StopRequested(KEEP_SAVED), [HaltQuery("q2")]),
            (QueryEnded("q2", PLAN), [CommitEpochs()]),
            *SAVED,
        ],
    ),
    "stopped with drain, which is in time for an open batch": (
        a_job(("q1", "q2"), **A_STREAM),
        [
            (Started(), start("q1", "q2")),
            (StopRequested(FLUSH), [HaltQuery("q1"), HaltQuery("q2")]),
            (QueryEnded("q1", PLAN), []),
            (QueryEnded("q2", RUN_OPEN), [*end_of("q1"), *end_of("q2")]),
            (IntentStored("q1", PLAN), planned("q1")),
            (IntentStored("q2", RUN_OPEN), start("q2", how=StartMode.ONE_BATCH)),
            (QueryEnded("q2", PLAN), planned("q2")),
            (QueryEnded("q1", DONE), []),
            (QueryEnded("q2", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "stopped with drain, a chain: the rest flows down": (
        a_job(("q1", "q2"), upstream={"q2": ("q1",)}, **A_STREAM),
        [
            (Started(), start("q1", "q2")),
            (StopRequested(FLUSH_SAVED), [HaltQuery("q1"), HaltQuery("q2")]),
            (QueryEnded("q2", PLAN), []),
            *drains("q1"),
            (QueryEnded("q1", DONE), [PublishEpochs("q1"), *start("q2", how=StartMode.AVAILABLE)]),
            *drains("q2"),
            (QueryEnded("q2", DONE), [CallFinish()]),
            (FinishDone(), [CommitEpochs()]),
            (EpochsCommitted(), [TakeSavepoint()]),
            (SavepointFailed(), [PutFinal(AtEnd.DRAIN)]),
            *CLOSED,
        ],
    ),
    "stopped without drain while one query drains: its drain is completed": (
        a_job(("q1", "q2")),
        [
            (Started(), start("q1", "q2")),
            (QueryEnded("q1", PLAN), end_of("q1")),
            (StopRequested(KEEP), [HaltQuery("q2")]),
            (QueryEnded("q2", PLAN), []),
            (IntentStored("q1", PLAN), planned("q1")),
            (QueryEnded("q1", DONE), [CommitEpochs()]),
            *sealed(AtEnd.SUSPEND),
        ],
    ),
    "restart: finished queries are left alone": (
        a_job(THREE),
        [
            (Started({"q1": DONE, "q3": NOTHING}), start("q2")),
            *drains("q2"),
            (QueryEnded("q2", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: an ordinary batch is open": (
        a_job(),
        [
            (Started({"q1": RUN_OPEN}), start("q1", how=StartMode.ONE_BATCH)),
            (QueryEnded("q1", PLAN), planned("q1")),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: every query is drained": (
        a_job(THREE),
        [(Started({"q1": DONE, "q2": NOTHING, "q3": DONE}), [CallFinish()]), *FINISH],
    ),
    "restart: three queries, each elsewhere in its drain": (
        a_job(THREE),
        [
            (
                Started({"q1": DONE, "q2": RUN_PLANNED, "q3": PLAN}),
                [*start("q2", how=StartMode.ONE_BATCH), *planned("q3")],
            ),
            (QueryEnded("q3", DONE), []),
            (QueryEnded("q2", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: a chain whose upstream has ended": (
        a_job(("q1", "q2"), upstream={"q2": ("q1",)}),
        [
            (Started({"q1": DONE}), [PublishEpochs("q1"), *start("q2", how=StartMode.AVAILABLE)]),
            (QueryEnded("q2", NOTHING), end_of("q2")),
            (IntentStored("q2", NOTHING), [CallFinish()]),
            *FINISH,
        ],
    ),
    "restart: a stop with drain is completed, and nothing more is read": (
        a_job(("q1", "q2"), upstream={"q2": ("q1",)}, **A_STREAM),
        [
            (Started({}, FLUSH), end_of("q1")),
            (IntentStored("q1", RUN_OPEN), start("q1", how=StartMode.ONE_BATCH)),
            (QueryEnded("q1", PLAN), planned("q1")),
            (QueryEnded("q1", DONE), [PublishEpochs("q1"), *start("q2", how=StartMode.AVAILABLE)]),
            (QueryEnded("q2", NOTHING), end_of("q2")),
            (IntentStored("q2", NOTHING), [CallFinish()]),
            *FINISH,
        ],
    ),
    "a drain batch that ended uncommitted runs again": (
        a_job(),
        [
            (Started({"q1": RUN_PLANNED}), start("q1", how=StartMode.ONE_BATCH)),
            (QueryEnded("q1", RUN_PLANNED), start("q1", how=StartMode.ONE_BATCH)),
            (QueryEnded("q1", DONE), [CallFinish()]),
            *FINISH,
        ],
    ),
}


def tell(life: Lifecycle, events) -> tuple[Lifecycle, list[Any]]:
    """Feed *events*; return the state after them and all instructions."""
    told: list[Any] = []
    for event in events:
        life, instructions = life.handle(event)
        told.extend(instructions)
    return life, told


# A stop with drain and savepoint passes through every phase: q1 still drains when nobody reads.
TO_THE_END = [
    Started(),
    StopRequested(FLUSH_SAVED),
    QueryEnded("q1", PLAN),
    IntentStored("q1", PLAN),
    QueryEnded("q1", DONE),
    FinishDone(),
    EpochsCommitted(),
    SavepointTaken(),
    FinalPut(),
    Closed(),
]


def life_in(phase: JobPhase) -> Lifecycle:
    """Return an attempt that has reached *phase* on the way to a drain."""
    life = a_job(ONE)
    for event in TO_THE_END:
        if life.phase is phase:
            break
        life, _ = life.handle(event)
    assert phase is life.phase
    return life


@pytest.mark.parametrize("story", STORIES)
def test_each_event_asks_for_the_right_things_in_order(story):
    """Through a whole life, every event gives exactly the instructions that follow from it."""
    life, steps = STORIES[story]

    for event, expected in steps:
        life, instructions = life.handle(event)
        assert expected == list(instructions)

    assert JobPhase.ENDED is life.phase
    assert life.failure is None
    assert life.cancelled == (life.stop == PAUSE)


def test_phases_follow_the_drawing():
    """
    A stop with drain and savepoint passes through every phase in the order that the module draws.
    """
    life = a_job(ONE)
    phases = [life.phase]
    for event in TO_THE_END:
        life, _ = life.handle(event)
        if life.phase is not phases[-1]:
            phases.append(life.phase)

    assert list(JobPhase) == phases


def test_queries_are_seen_through_their_phases():
    """Each query's own phase tells where it stands, for progress."""
    life = a_job(THREE, upstream={"q3": ("q1",)})
    assert dict.fromkeys(THREE, QueryPhase.IDLE) == life.queries

    life, _ = life.handle(Started())
    life, _ = life.handle(QueryEnded("q1", PLAN))
    assert {
        "q1": QueryPhase.READ,
        "q2": QueryPhase.READING,
        "q3": QueryPhase.WAITING,
    } == life.queries

    life, _ = tell(life, [IntentStored("q1", NOTHING), StopRequested(KEEP)])
    assert {
        "q1": QueryPhase.DRAINED,
        "q2": QueryPhase.HALTING,
        "q3": QueryPhase.HALTING,
    } == life.queries


@pytest.mark.parametrize("phase", JobPhase)
def test_epochs_are_published_at_once_only_while_some_query_reads(phase):
    """Afterwards, what Spark commits waits for the instruction to publish it."""
    assert (phase in {JobPhase.READING, JobPhase.HALTING}) is life_in(phase).publishes


INTERRUPTIBLE = [p for p in JobPhase if p not in {JobPhase.CLOSING, JobPhase.ENDED}]


@pytest.mark.parametrize("phase", INTERRUPTIBLE)
def test_a_failure_closes_from_every_phase(phase):
    """A failure leads to close and nothing else, and stays the reason."""
    life, instructions = life_in(phase).handle(Failed(BROKEN))

    assert (Close(),) == instructions
    assert JobPhase.CLOSING is life.phase
    assert BROKEN is life.failure

    life, instructions = life.handle(Closed())
    assert () == instructions
    assert JobPhase.ENDED is life.phase


@pytest.mark.parametrize("phase", INTERRUPTIBLE)
def test_a_cancel_closes_from_every_phase(phase):
    """A cancel leads to close and nothing else: no finish, no final checkpoint."""
    life, instructions = life_in(phase).handle(CancelRequested())

    assert (Close(),) == instructions
    assert JobPhase.CLOSING is life.phase
    assert life.cancelled
    assert life.failure is None


@pytest.mark.parametrize("phase", [JobPhase.CLOSING, JobPhase.ENDED])
@pytest.mark.parametrize("event", [Failed(BROKEN), CancelRequested()])
def test_an_interruption_after_the_end_changes_nothing(phase, event):
    """Once the final checkpoint is put, neither a failure nor a cancel takes it back."""
    life = life_in(phase)

    assert (life, ()) == life.handle(event)


def test_the_first_reason_stands():
    """What fails while a failed attempt closes does not hide why it failed."""
    life, _ = life_in(JobPhase.READING).handle(Failed(BROKEN))
    life, instructions = life.handle(Failed(LATER))

    assert () == instructions
    assert BROKEN is life.failure


# --- starting again -------------------------------------------------------------------------------


def reading(*names, **job):
    """Return a job all of whose queries read."""
    return tell(a_job(names, **job), [Started()])[0]


def test_a_query_that_failed_is_started_again_alone():
    """The others read on meanwhile, and it reads as it did before."""
    life, told = reading(*THREE).handle(QueryFailed("q2", {"q2"}))
    assert ((), {"q2"}) == (told, life.restarting)
    assert JobPhase.READING is life.phase

    life, told = life.handle(RestartDue({"q2": NOTHING}))
    assert (RestartQuery("q2", StartMode.INPUT),) == told
    assert frozenset() == life.restarting


def test_its_region_is_stopped_and_started_with_it():
    """
    What cannot be told from the failed query is stopped at once; what has ended is left alone.
    """
    life, _ = tell(reading(*THREE), [QueryEnded("q3", DONE), IntentStored("q3", DONE)])
    life, told = life.handle(QueryFailed("q1", THREE))
    assert (StopQuery("q2"),) == told

    _, told = life.handle(RestartDue(dict.fromkeys(("q1", "q2"), NOTHING)))
    assert tuple(RestartQuery(name, StartMode.INPUT) for name in ("q1", "q2")) == told


def test_the_job_waits_for_a_query_that_is_about_to_start_again():
    """It has not ended: the job moves on when it has read its last row, too."""
    life, _ = reading("q1", "q2").handle(QueryFailed("q1", {"q1"}))
    life, told = tell(life, [QueryEnded("q2", NOTHING), IntentStored("q2", NOTHING)])
    assert (JobPhase.READING, end_of("q2")) == (life.phase, told)

    life, _ = tell(life, [RestartDue({"q1": NOTHING}), QueryEnded("q1", NOTHING)])
    life, instructions = life.handle(IntentStored("q1", NOTHING))
    assert (CallFinish(),) == instructions


def test_a_second_failure_joins_the_restart_that_is_pending():
    """Both are started when the while is over."""
    life, _ = tell(reading(*THREE), [QueryFailed("q1", {"q1"}), QueryFailed("q3", {"q3"})])
    _, told = life.handle(RestartDue(dict.fromkeys(THREE, NOTHING)))

    assert tuple(RestartQuery(name, StartMode.INPUT) for name in ("q1", "q3")) == told


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (RUN_PLANNED, (RestartQuery("q1", StartMode.ONE_BATCH),)),
        (RUN_OPEN, (RestartQuery("q1", StartMode.ONE_BATCH),)),
        (PLAN, (PlanDrain("q1"), RestartQuery("q1", StartMode.ONE_BATCH))),
        (DONE, (CallFinish(),)),  # the batch had committed before the query failed
    ],
)
def test_a_drain_goes_on_where_its_logs_stand(step, told):
    """A query that fails while it drains never reads again: what is planned runs, and it alone."""
    life, _ = tell(reading("q1"), [QueryEnded("q1", PLAN), IntentStored("q1", RUN_PLANNED)])
    assert JobPhase.DRAINING is life.phase
    life, _ = life.handle(QueryFailed("q1", {"q1"}))

    assert told == life.handle(RestartDue({"q1": step}))[1]


def test_a_stop_does_not_wait_for_a_restart():
    """A query that does not run has ended its batch: the job is suspended as it is."""
    life, _ = reading("q1", "q2", at_end=AtEnd.SUSPEND).handle(QueryFailed("q1", {"q1"}))
    life, told = life.handle(StopRequested(KEEP))
    assert (StopQuery("q1"), HaltQuery("q2")) == told
    assert frozenset() == life.restarting

    _, told = life.handle(QueryEnded("q2", NOTHING))
    assert (CommitEpochs(),) == told


def test_a_stop_waits_for_a_drain_that_is_started_again():
    """What has read its last row drains to its end, whoever stops the job."""
    life, _ = tell(reading("q1", "q2"), [QueryEnded("q1", PLAN), IntentStored("q1", RUN_PLANNED)])
    life, _ = tell(life, [QueryFailed("q1", {"q1"}), StopRequested(FLUSH)])
    life, _ = tell(life, [QueryEnded("q2", NOTHING)])
    assert (JobPhase.HALTING, frozenset({"q1"})) == (life.phase, life.restarting)

    _, told = life.handle(RestartDue({"q1": RUN_PLANNED}))
    assert (RestartQuery("q1", StartMode.ONE_BATCH),) == told


def test_a_query_that_was_told_to_start_again_is_not_stopped_again():
    """A region of which one has failed already has that one to start, and the others to stop."""
    life, _ = reading(*THREE).handle(QueryFailed("q1", {"q1"}))
    _, told = life.handle(QueryFailed("q2", THREE))

    assert (StopQuery("q3"),) == told


def test_a_query_that_catches_up_does_so_again():
    """It is not taken for one that has caught up."""
    life, _ = tell(a_job(ONE), [Started(mixed={"q1"}), QueryFailed("q1", {"q1"})])

    assert (RestartQuery("q1", StartMode.AVAILABLE),) == life.handle(RestartDue({"q1": NOTHING}))[1]


EVENTS = {
    Started: Started(),
    QueryEnded: QueryEnded("q1", PLAN),
    QueryFailed: QueryFailed("q1", {"q1"}),
    RestartDue: RestartDue({}),
    IntentStored: IntentStored("q1", PLAN),
    StopRequested: StopRequested(KEEP),
    FinishDone: FinishDone(),
    EpochsCommitted: EpochsCommitted(),
    SavepointTaken: SavepointTaken(),
    SavepointFailed: SavepointFailed(),
    FinalPut: FinalPut(),
    Closed: Closed(),
}
LEGAL: dict[JobPhase, set[type]] = {
    JobPhase.OPENED: {Started},
    JobPhase.READING: {QueryEnded, QueryFailed, RestartDue, IntentStored, StopRequested},
    JobPhase.HALTING: {QueryEnded, RestartDue, IntentStored},
    JobPhase.DRAINING: {IntentStored, QueryEnded, QueryFailed, RestartDue},
    JobPhase.FINISHING: {FinishDone},
    JobPhase.COMMITTING: {EpochsCommitted},
    JobPhase.SAVING: {SavepointTaken, SavepointFailed},
    JobPhase.SEALING: {FinalPut},
    JobPhase.CLOSING: {Closed},
    JobPhase.ENDED: set(),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("phase", JobPhase)
def test_an_event_out_of_place_is_a_bug(phase, event):
    """Every pair of phase and event is either in the table or refused, naming both."""
    life = life_in(phase)
    if type(event) in LEGAL[phase]:
        life.handle(event)
        return

    with pytest.raises(IllegalTransitionError) as raised:
        life.handle(event)
    assert type(event).__name__ in str(raised.value)
    assert phase.value in str(raised.value)


def test_handling_an_event_leaves_the_state_before_it_alone():
    """A state is a value: the next one is another."""
    before = a_job(ONE)
    before.handle(Started())

    assert a_job(ONE) == before


class World:
    """Answers instructions as a driver would, with Spark's answers and requests drawn at random."""

    def __init__(self, draw, life, steps, stop, mixed) -> None:
        self.draw = draw
        self.life = life
        self.running: set[str] = set()
        self.told: list[Any] = []
        self.interruptions = 2
        self.stops = 3
        self.failures = 4
        self.before: dict[str, DrainStep] = {}  # what a single batch that runs has found
        # What each query's logs ask for; a drain moves it on.
        first = [NOTHING, PLAN, RUN_OPEN]
        self.steps = {name: draw(st.sampled_from(first)) for name in life.queries} | steps
        self.published: set[str] = set()
        self.mixed = set(mixed)
        self.answers: list[Any] = [Started(dict(steps), stop, frozenset(mixed))]

    def choose(self):
        """Take the next event: an answer in order, a query's end, a request, or an interruption."""
        if self.interruptions and self.draw(st.integers(0, 19)) == 19:
            self.interruptions -= 1
            return self.draw(st.sampled_from([Failed(BROKEN), CancelRequested()]))
        if self.answers:
            return self.answers.pop(0)
        may_stop = self.life.phase is JobPhase.READING and self.life.stop is None and self.stops
        if may_stop and self.draw(st.integers(0, 3)) == 3:
            self.stops -= 1
            stop = self.draw(st.sampled_from([KEEP, KEEP_SAVED, PAUSE, FLUSH, FLUSH_SAVED]))
            return StopRequested(stop)
        waits = self.life.restarting and (not self.running or self.draw(st.booleans()))
        if waits and self.life.phase is not JobPhase.CLOSING:
            return RestartDue({name: self.steps[name] for name in self.life.restarting})
        name = self.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(name)
        may_fail = self.life.phase in {JobPhase.READING, JobPhase.DRAINING} and self.failures
        if may_fail and self.draw(st.integers(0, 3)) == 3:
            return self.fail(name)
        self.before.pop(name, None)
        return QueryEnded(name, self.steps[name])

    def fail(self, name: str) -> QueryFailed:
        """Let the query fail before its batch has committed, or just after."""
        self.failures -= 1
        self.set_back(name)
        return QueryFailed(name, self.draw(st.sets(st.sampled_from(sorted(self.life.queries)))))

    def set_back(self, name: str) -> None:
        before = self.before.pop(name, self.steps[name])
        self.steps[name] = self.draw(st.sampled_from([before, self.steps[name]]))

    def live(self) -> list[Any]:
        while self.life.phase is not JobPhase.ENDED:
            self.life, instructions = self.life.handle(self.choose())
            for instruction in instructions:
                self.told.append(instruction)
                self.carry_out(instruction)
        return self.told

    def carry_out(self, instruction) -> None:  # noqa: C901 - one branch for each instruction
        answers = {
            CommitEpochs: EpochsCommitted(),
            CallFinish: FinishDone(),
            PutFinal: FinalPut(),
            Close: Closed(),
        }
        if isinstance(instruction, PlanDrain):
            assert PLAN is self.steps[instruction.query]
            self.steps[instruction.query] = RUN_PLANNED
        elif isinstance(instruction, (StartQuery, RestartQuery)):
            self.start(instruction)
        elif isinstance(instruction, StopQuery):
            self.running.discard(instruction.query)
            self.set_back(instruction.query)
        elif isinstance(instruction, HaltQuery):
            assert instruction.query in self.running
        elif isinstance(instruction, PublishEpochs):
            assert instruction.query not in self.running
            self.published.add(instruction.query)
        elif isinstance(instruction, EndSources):
            assert instruction.query not in self.running
            self.mixed.remove(instruction.query)
        elif isinstance(instruction, StoreDrainIntent):
            self.answers.append(IntentStored(instruction.query, self.steps[instruction.query]))
        elif isinstance(instruction, TakeSavepoint):
            assert not self.running
            self.answers.append(self.draw(st.sampled_from([SavepointTaken(), SavepointFailed()])))
        else:
            if isinstance(instruction, Close):
                self.answers.clear()
                self.running.clear()
            self.answers.append(answers[type(instruction)])

    def start(self, instruction: StartQuery | RestartQuery) -> None:
        query, how = instruction.query, instruction.how
        assert query not in self.running
        self.running.add(query)
        step = self.steps[query]
        if how is StartMode.ONE_BATCH:
            self.before[query] = step
            self.steps[query] = {RUN_OPEN: PLAN, RUN_PLANNED: DONE}[step]
            return
        assert step not in {RUN_PLANNED, DONE}, "read after the drain"
        if how is StartMode.AVAILABLE and not self.life.continuous:
            assert set(self.life.upstream.get(query, ())) <= self.published
        if how is StartMode.INPUT:
            assert query not in self.mixed, "it has not caught up"
        # An open batch is run first, by any trigger; the query may be stopped in another one.
        self.steps[query] = self.draw(st.sampled_from([PLAN, RUN_OPEN]))


LIVES = st.sampled_from([ONE, ("q1", "q2"), THREE])
UPSTREAM = st.sampled_from([{}, {"q2": ("q1",)}, CHAIN, {"q3": ("q1", "q2")}])


@pytest.mark.slow
@settings(max_examples=6 * present(settings.default).max_examples)
@given(st.data())
def test_in_any_life_the_order_holds(data):
    """
    Whatever happens in whatever order: the final checkpoint follows the savepoint, which follows the
    last commit, which follows finish, which follows the drain of every query; a query is never read
    after its drain, nor before what it reads is published; finish is never called on suspend, and
    close exactly once.
    """
    names = data.draw(LIVES)
    upstream = {q: ups for q, ups in data.draw(UPSTREAM).items() if q in names}
    at_end = data.draw(st.sampled_from(list(AtEnd)))
    continuous = at_end is AtEnd.SUSPEND and data.draw(st.booleans())
    some = st.sets(st.sampled_from(names))
    ends = {q for q in data.draw(some) if not upstream.get(q)} if continuous else set()
    bounded = ends if len(ends) < len(names) else set()
    mixed = data.draw(some) - bounded
    life = a_job(names, at_end, upstream=upstream, continuous=continuous, bounded=bounded)
    drained = data.draw(st.sets(st.sampled_from(names))) if at_end is AtEnd.DRAIN else set()
    drained = {q for q in drained if set(upstream.get(q, ())) <= drained}
    steps = {q: data.draw(st.sampled_from([RUN_PLANNED, DONE, NOTHING, PLAN])) for q in drained}
    stop = data.draw(st.sampled_from([None, FLUSH, FLUSH_SAVED]))
    world = World(data.draw, life, steps, stop, mixed - drained)

    told = world.live()
    kinds = [type(instruction) for instruction in told]

    assert 1 == kinds.count(Close)
    assert Close is kinds[-1]
    assert kinds.count(PutFinal) <= 1
    ending = world.life.ending
    assert kinds.count(CallFinish) <= (1 if ending is AtEnd.DRAIN else 0)
    for query in {i.query for i in told if isinstance(i, PlanDrain)} - drained:
        of_query = [i for i in told if getattr(i, "query", None) == query]
        assert 1 == of_query.count(StoreDrainIntent(query)) == of_query.count(PlanDrain(query))
        assert of_query.index(StoreDrainIntent(query)) < of_query.index(PlanDrain(query))
    if CallFinish in kinds:
        assert set(world.steps.values()) <= {NOTHING, DONE}
        assert not {StartQuery, RestartQuery, PlanDrain} & set(kinds[kinds.index(CallFinish) :])
    if PutFinal in kinds:
        saved = [TakeSavepoint] if world.life.stop and world.life.stop.savepoint else []
        tail = [CommitEpochs, *saved, PutFinal, Close]
        expected = [CallFinish, *tail] if ending is AtEnd.DRAIN else tail
        assert expected == kinds[-len(expected) :]
        assert world.life.stop != PAUSE, "the run is to be gone on with"
    elif world.life.failure is None:
        assert world.life.cancelled
