"""GPU leases against a model, in any order of asking, giving back, dying, coming back and clearing."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis import Redis

from shared.gpu_leases import GpuLeases, lease_key
from shared.schemas.fleet import GpuHolder
from shared.schemas.job import now

GPUS = ["fake-0", "fake-1", "fake-2"]
RUNS = st.sampled_from(["a", "b", "c", "d"])
LEASE_S = 600.0


class LeaseMachine(RuleBasedStateMachine):
    """The model: who believes to have which GPUs, which of them are leased, and who waits in which order."""

    redis: Redis

    @initialize()
    def start(self):
        self.redis.flushall()
        self.leases = GpuLeases(self.redis)
        self.held = {}  # GPU to the run that had it last without giving it back
        self.leased = set()
        self.line = {}  # run to how many it waits for, in order

    def holder(self, run):
        return GpuHolder(token=run, job_id="job_x", stage="train", worker="w", host="h", since=now())

    def quarantined(self):
        return self.held.keys() - self.leased

    @rule(run=RUNS, count=st.integers(1, 3))
    def ask(self, run, count):
        if run in self.held.values():
            return  # a run asks once it has given back what it had
        self.line[run] = count
        free = [gpu for gpu in GPUS if gpu not in self.held]
        for other, wanted in self.line.items():
            if other == run:
                break
            if wanted <= len(GPUS) - len(self.quarantined()):
                free = free[wanted:]
        got = self.leases.ask(self.holder(run), count, GPUS, GPUS, LEASE_S)
        assert len(got) == (count if len(free) >= count else 0)
        assert not self.held.keys() & set(got)
        if got:
            self.held |= dict.fromkeys(got, run)
            self.leased |= set(got)
            del self.line[run]

    @rule(run=RUNS)
    def withdraw(self, run):
        self.line.pop(run, None)
        self.leases.withdraw(run)

    @rule(run=RUNS)
    def give_back(self, run):
        gpus = [gpu for gpu, owner in self.held.items() if owner == run]
        self.leases.give_back(run, gpus or GPUS)
        for gpu in gpus:
            del self.held[gpu]
            self.leased.discard(gpu)

    @rule(run=RUNS)
    def fall_silent(self, run):
        for gpu in [gpu for gpu, owner in self.held.items() if owner == run]:
            self.redis.delete(lease_key(gpu))
            self.leased.discard(gpu)

    @rule(run=RUNS, gpu=st.sampled_from(GPUS))
    def renew(self, run, gpu):
        owner = self.held.get(gpu)
        if owner is None:
            return  # a run renews what it once had; whoever gave it back does not
        assert self.leases.renew(self.holder(run), [gpu], LEASE_S) == (owner == run)
        if owner == run:
            self.leased.add(gpu)

    @rule(gpu=st.sampled_from(GPUS), run=RUNS)
    def clear(self, gpu, run):
        possible = gpu in self.quarantined() and self.held[gpu] == run
        assert self.leases.clear(gpu, run) == possible
        if possible:
            del self.held[gpu]

    @invariant()
    def redis_agrees(self):
        if not hasattr(self, "leases"):
            return
        assert {gpu: holder.token for gpu, holder in self.leases.holders().items()} == self.held
        assert {gpu for gpu in GPUS if self.redis.get(lease_key(gpu))} == self.leased
        assert self.leases.quarantined(GPUS).keys() == self.quarantined()


@pytest.mark.integration
def test_leases_behave_as_the_model_does(redis_handle):
    with Redis.from_url(redis_handle.url, decode_responses=True) as redis:
        LeaseMachine.redis = redis
        run_state_machine_as_test(
            LeaseMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
        )
