"""Leases on GPUs in a real Redis: all or none, nobody starves, and what a dead run had is given to nobody."""

import threading

import pytest
from redis import Redis

from shared.fleet import Fleet
from shared.gpu_leases import GpuLeases, lease_key
from shared.schemas.fleet import GpuHolder, GpuInfo, GpuStatus, WorkerRecord
from shared.schemas.job import now
from tests.support.wait import wait_until

POOL = ["fake-0", "fake-1", "fake-2", "fake-3"]
LONG_S = 60.0


@pytest.fixture
def redis(redis_handle):
    with Redis.from_url(redis_handle.url, decode_responses=True) as client:
        client.flushall()
        yield client


@pytest.fixture
def leases(redis):
    return GpuLeases(redis)


def holder(token):
    return GpuHolder(token=token, job_id="job_x", stage="train", worker="w", host="h", since=now())


def ask(leases, token, count, pool=POOL, usable=None, lease_s=LONG_S):
    return leases.ask(holder(token), count, pool, pool if usable is None else usable, lease_s)


def lapse(redis, gpus):
    for gpu in gpus:
        redis.delete(lease_key(gpu))


def test_a_run_gets_all_gpus_that_it_asks_for_or_none(leases, redis):
    assert ask(leases, "a", 3) == ["fake-0", "fake-1", "fake-2"]
    assert ask(leases, "b", 2) == []
    assert redis.get(lease_key("fake-3")) is None
    leases.give_back("a", POOL[:3])
    assert ask(leases, "b", 2) == ["fake-0", "fake-1"]


def test_a_run_that_wants_all_is_not_starved_by_runs_that_want_one(leases):
    running = [f"small-{n}" for n in range(4)]
    taken = {token: ask(leases, token, 1) for token in running}
    assert ask(leases, "large", 4) == []
    for number in range(4, 8):  # small ones keep coming; each that ends makes room for the large one alone
        leases.give_back(running[number - 4], taken[running[number - 4]])
        assert ask(leases, f"small-{number}", 1) == []
    assert ask(leases, "large", 4) == POOL
    leases.give_back("large", POOL)
    assert [ask(leases, f"small-{number}", 1) for number in (7, 5, 4)] == [["fake-3"], ["fake-1"], ["fake-0"]]


def test_a_wish_that_cannot_be_met_now_lets_others_pass(leases, redis):
    assert ask(leases, "dead", 1) == ["fake-0"]
    lapse(redis, ["fake-0"])
    assert ask(leases, "large", 4) == []
    assert ask(leases, "small", 1) == ["fake-1"]
    assert leases.clear("fake-0", "dead")
    assert ask(leases, "small-2", 1) == []  # now the large one can be served when `small` ends
    leases.give_back("small", ["fake-1"])
    assert ask(leases, "large", 4) == POOL


def test_what_became_free_since_the_first_in_line_looked_is_kept_for_it(leases):
    assert ask(leases, "holder", 1, ["x-0"]) == ["x-0"]
    assert ask(leases, "first", 1, ["x-0"], usable=[]) == []  # the holder's processes are on it
    leases.give_back("holder", ["x-0"])
    assert ask(leases, "holder again", 1, ["x-0"]) == []  # a job that is tried again at once
    assert ask(leases, "first", 1, ["x-0"]) == ["x-0"]


def test_runs_on_other_gpus_do_not_stand_in_each_others_way(leases):
    assert ask(leases, "a", 2, ["x-0", "x-1"], usable=[]) == []
    assert ask(leases, "b", 1, ["y-0"]) == ["y-0"]


def test_a_run_that_died_in_line_holds_nobody_up(leases, redis):
    assert ask(leases, "x", 1) == ["fake-0"]
    assert ask(leases, "dead", 4) == []
    leases.give_back("x", ["fake-0"])
    assert ask(leases, "b", 1) == []
    redis.delete("eyrie:gpus:wait:dead")
    assert ask(leases, "b", 1) == ["fake-0"]


def test_a_run_that_gave_up_holds_nobody_up(leases):
    assert ask(leases, "x", 1) == ["fake-0"]
    assert ask(leases, "a", 4) == []
    leases.give_back("x", ["fake-0"])
    assert ask(leases, "b", 1) == []
    leases.withdraw("a")
    assert ask(leases, "b", 1) == ["fake-0"]


def test_an_expired_lease_is_quarantined_until_somebody_finds_the_gpu_empty(leases, redis):
    assert ask(leases, "a", 4, lease_s=0.05) == POOL
    wait_until(lambda: redis.get(lease_key("fake-0")) is None, what="the lease expires")
    assert set(leases.quarantined(POOL)) == set(POOL)
    assert ask(leases, "b", 1) == []
    assert not leases.clear("fake-0", "another run")
    assert leases.clear("fake-2", "a")
    assert ask(leases, "b", 1) == ["fake-2"]
    assert leases.quarantined(POOL).keys() == {"fake-0", "fake-1", "fake-3"}


def test_a_live_lease_cannot_be_cleared(leases):
    ask(leases, "a", 1)
    assert not leases.clear("fake-0", "a")


def test_a_run_that_comes_back_in_time_has_its_gpus_and_one_that_comes_late_is_told(leases, redis):
    ask(leases, "a", 2)
    lapse(redis, POOL)
    assert leases.renew(holder("a"), ["fake-0", "fake-1"], LONG_S)
    assert leases.quarantined(POOL) == {}
    lapse(redis, POOL)
    leases.clear("fake-0", "a")
    assert ask(leases, "b", 1) == ["fake-0"]
    assert not leases.renew(holder("a"), ["fake-0", "fake-1"], LONG_S)
    leases.give_back("a", ["fake-0", "fake-1"])
    assert leases.holders()["fake-0"].token == "b"


def test_a_lease_that_redis_lost_is_entered_again(leases, redis):
    ask(leases, "a", 1)
    redis.flushall()
    assert leases.renew(holder("a"), ["fake-0"], LONG_S)
    assert ask(leases, "b", 4) == []
    assert leases.holders()["fake-0"].token == "a"


def test_no_gpu_is_ever_in_two_runs_when_many_ask_at_once(redis_handle, redis):
    busy, clashes, served = set(), [], []
    guard = threading.Lock()

    def work(number):
        with Redis.from_url(redis_handle.url, decode_responses=True) as client:
            leases, token = GpuLeases(client), f"run-{number}"
            gpus = wait_until(lambda: ask(leases, token, 1 + number % 4), 30, 0.005, "served")
            with guard:
                clashes.extend(busy.intersection(gpus))
                busy.update(gpus)
            client.ping()
            with guard:
                busy.difference_update(gpus)
                served.append(token)
            leases.give_back(token, gpus)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (clashes, len(served)) == ([], 16)


def test_the_fleet_shows_workers_gpus_and_who_has_them(leases, redis):
    fleet = Fleet(redis)
    infos = [GpuInfo(id=gpu, name="faked") for gpu in POOL]
    record = WorkerRecord(id="w", host="h", pid=1, version="1", gpus=infos, started_at=now(), seen_at=now())
    fleet.register(record, LONG_S)
    fleet.register(record.model_copy(update={"id": "v"}), LONG_S)
    ask(leases, "a", 2)
    lapse(redis, ["fake-1"])
    states = {gpu.id: gpu for gpu in fleet.gpus()}
    assert [states[gpu].status for gpu in POOL] == [
        GpuStatus.LEASED,
        GpuStatus.QUARANTINED,
        GpuStatus.FREE,
        GpuStatus.FREE,
    ]
    assert states["fake-0"].holder.token == states["fake-1"].holder.token == "a"
    assert states["fake-2"].workers == ["v", "w"]
    redis.delete("eyrie:worker:v")
    fleet.sign_off("w")
    assert fleet.workers() == []
    assert {gpu.id for gpu in fleet.gpus()} == {"fake-0", "fake-1"}
