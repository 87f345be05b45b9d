"""What `pagoda plan --tier` says: the shortest prefix worth loading, held against the gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.planning.plan import make_plan
from pagoda.planning.request import PlanRequest
from pagoda.planning.subject import read_subject
from pagoda.planning.tables import accelerators, tier_rows
from pagoda.planning.tier_link import parse_tier_link
from pagoda.planning.tier_worth import TierWorth, tier_worths
from pagoda.tiers.gate import leading_worth_loading
from pagoda.tiers.kinds import KINDS, parse_tier
from pagoda.tiers.rates import Rates
from planning.plans import LLAMA_3_8B, facts, plan

LINKS = (*tier_rows(), "disk:bandwidth=3GB/s,latency=0.1ms")
SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2
"""Of Llama 3.1 8B in 16 bits: K and V, layers, heads, numbers of a head."""


@dataclass(frozen=True)
class Prefix:
    num_rows: int
    seconds: float | None


def worths(name: str, *tiers: str, **options: Any) -> tuple[TierWorth, ...]:
    return tier_worths(read_subject(facts(name), PlanRequest(tier=tiers, **options), None))


def test_loading_and_computing_take_what_can_be_worked_out_by_hand() -> None:
    asked = "disk:bandwidth=2GB/s,latency=5ms"
    [worth] = worths(LLAMA_3_8B, asked, gpu="H100", context=4096, prefill_rate=10_000.0)
    assert worth.token_bytes == TOKEN_BYTES
    assert worth.load_s == pytest.approx(0.005 + 4096 * TOKEN_BYTES / 2e9)
    assert worth.compute_s == pytest.approx(0.4096)
    assert worth.least_bandwidth == pytest.approx(TOKEN_BYTES * 10_000)
    assert worth.is_worth
    # A token loads in 65.5 µs and is computed in 100: 5 ms are made good after 145.0 tokens.
    assert worth.shortest_tokens == 160


@pytest.mark.parametrize("tier", LINKS)
@pytest.mark.parametrize(
    ("name", "longest", "options"),
    [
        (LLAMA_3_8B, 65_536, {"gpu": "H100"}),
        (LLAMA_3_8B, 65_536, {"gpu": "L4", "prefill_rate": 3000.0}),
        ("meta-llama/Llama-3.1-70B-Instruct", 131_072, {"gpu": "H100", "tensor_parallel_size": 4}),
        ("google/gemma-3-27b-it", 65_536, {"gpu": "H100", "engine": "pagoda"}),
        (SMOL, 8192, {"engine": "pagoda", "memory": 2**34, "prefill_rate": 900.0}),
    ],
)
def test_the_shortest_prefix_is_where_the_gate_first_opens(
    name: str, longest: int, options: dict[str, Any], tier: str
) -> None:
    def opens(num_tokens: int) -> bool:
        [asked] = worths(name, tier, context=num_tokens, max_model_len=longest, **options)
        offer = Prefix(num_tokens // block, asked.load_s)
        decision = leading_worth_loading([offer], asked.compute_s / offer.num_rows)
        assert asked.is_worth == (decision.num_rows > 0)
        return asked.is_worth

    block = read_subject(facts(name), PlanRequest(**options), None).pool.block_size
    [worth] = worths(name, tier, context=4096, max_model_len=longest, **options)
    if worth.buys_nothing:
        assert worth.kind == "host"
        assert worth.shortest_tokens is None
        assert not worth.is_worth
        return
    assert worth.is_worth == (worth.load_s < worth.compute_s)
    shortest = worth.shortest_tokens
    if shortest is None:
        assert not any(map(opens, (block, 1024, longest)))
    else:
        assert shortest % block == 0
        assert opens(shortest)
        assert opens(longest)
        assert shortest == block or not opens(shortest - block)


def test_a_round_trip_and_a_rate_are_what_a_running_server_adds_up() -> None:
    """Its rates, once it has measured them, say the same."""
    link = parse_tier_link("redis://h,bandwidth=500MB/s,latency=2ms")
    rates = Rates(lambda: 0.0)
    rates.note_round_trip(0.002)
    rates.note_load(2**20, 0.002 + 2**20 / 500e6)
    assert link.seconds(64, 2**26) == pytest.approx(rates.seconds(2**26))


def test_where_there_is_one_memory_a_copy_in_it_buys_nothing() -> None:
    one_memory = {"GB10", "STRIX-HALO", "M2-ULTRA", "M4-MAX"}
    for device in accelerators():
        context = {"context": 2048, "max_model_len": 2048, "gpu": device.name}
        host, disk = worths(SMOL, "host-pcie5", "nvme", **context)
        assert host.buys_nothing == (device.vendor == "cpu" or device.name in one_memory)
        assert not disk.buys_nothing
    [own] = worths(SMOL, "host-c2c", gpu="GH200")  # LPDDR beside HBM: two memories
    assert own.shortest_tokens is not None


def test_a_cpu_that_is_not_named_has_one_memory_too() -> None:
    options = {"engine": "pagoda", "memory": 2**34, "prefill_rate": 500.0}
    [host] = worths(SMOL, "host:bandwidth=10GB/s,latency=1ms", **options)
    assert host.buys_nothing


def test_each_device_has_its_own_way_to_host_memory_and_all_share_a_disk() -> None:
    asked = {"gpu": "H100", "context": 4096}
    one, four = (
        worths(LLAMA_3_8B, "host-pcie5", "nvme", **asked, tensor_parallel_size=size)
        for size in (1, 4)
    )
    assert four[0].token_bytes == one[0].token_bytes  # heads are dealt out
    assert one[0].load_s - one[0].latency_s == pytest.approx(
        4 * (four[0].load_s - four[0].latency_s)
    )
    assert four[1].load_s == one[1].load_s


def test_larger_blocks_are_fewer_requests() -> None:
    small, large = (
        worths(SMOL, "s3", engine="pagoda", gpu="XEON-8480", context=4096, block_size=size)[0]
        for size in (16, 64)
    )
    requests = 0.15 * (4096 / 16 - 4096 / 64) / 16
    assert small.load_s - large.load_s == pytest.approx(requests)


def test_rows_of_the_table_are_whole() -> None:
    for name in tier_rows():
        link = parse_tier_link(name)
        assert link.kind in KINDS
        assert link.bandwidth >= 1e8
        assert 0 < link.latency_s < 1
        assert link.source
        assert link.per_device == (link.kind == "host")
        said = parse_tier_link(f"{name},bandwidth=5GB/s,requests=3")
        assert (said.bandwidth, said.requests_at_once) == (5e9, 3)
        assert said.latency_s == link.latency_s
        assert said.source == "as given"


def test_a_plan_takes_what_a_server_takes() -> None:
    for kind in KINDS.values():
        parse_tier(kind.pattern)
        link = parse_tier_link(kind.pattern)
        row = link.name.removeprefix(f"{kind.name} as ")
        typical = parse_tier_link(row)
        assert replace(link, name=row) == typical
        assert typical.kind == kind.name
    sata = parse_tier_link("disk:/my, folder,size=20GiB,link=sata,store=reused")
    assert replace(sata, name="sata") == parse_tier_link("sata")
    own = parse_tier_link("s3://bucket,endpoint=http://h:9000,latency=5ms,bandwidth=1GB/s")
    assert (own.name, own.latency_s, own.bandwidth) == ("s3", 0.005, 1e9)
    assert own.requests_at_once == parse_tier_link("s3").requests_at_once
    with pytest.raises(InvalidOptionError, match="bandwidth: disk takes"):
        parse_tier("disk:/kv,size=20GiB,bandwidth=1GB/s")


@pytest.mark.parametrize(
    ("tier", "words"),
    [
        ("tape", "one of host-pcie4, host-pcie5"),
        ("disk", "disk:PATH,size=20GiB, redis://host:6379/0"),
        ("redis://u:s3cret@h,link=s3", "of redis one of redis-10gbe, redis-100gbe"),
        ("redis://u:s3cret@h,size=1GiB", "size: redis takes ca, compression, form, store"),
        ("disk:/kv,link=redis-10gbe", "link='redis-10gbe': of disk one of nvme, sata"),
        ("disk:/kv,size=much", "tier size='much': a size"),
        ("disk:/kv,ttl=1d", "ttl: disk takes compression, form, size, store, timeout"),
        ("disk:/kv,form=kvtc-5x", "form: a plan counts whole blocks"),
        ("disk:bandwidth=3GB,latency=1ms", "a rate like 3GB/s"),
        ("disk:bandwidth=0GB/s,latency=1ms", "at least one byte"),
        ("disk:bandwidth=3GB/s,latency=0", "more than nothing"),
        ("disk:bandwidth=3GB/s,latency=soon", "a span of time"),
        ("nvme,requests=0", "1 to 4096"),
        ("nvme,requests=many", "1 to 4096"),
        ("nvme,speed=9", "speed: nvme takes bandwidth, latency, requests"),
        ("nvme,bandwidth=1GB/s,bandwidth=2GB/s", "said twice"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tier: str, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"^tier") as caught:
        plan(LLAMA_3_8B, gpu="H100", tier=[tier])
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_without_a_device_a_rate_is_asked_for() -> None:
    with pytest.raises(InvalidOptionError, match="--prefill-rate"):
        make_plan(facts(LLAMA_3_8B), PlanRequest(tier=["nvme"]))
    [worth] = worths(LLAMA_3_8B, "nvme", prefill_rate=1000.0)
    assert not worth.is_floor


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InvalidOptionError, match="prefill_rate"):
        PlanRequest(prefill_rate=rate)
