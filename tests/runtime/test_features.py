"""The cost of reading rows by their placement: the published formulas, and whether they fit."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.errors import TargetError
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import PLACEMENTS, FeatureAccess, TableRead
from pimflow.sparse.host_rows import HostRows
from pimflow.targets import Target, load_target, override

MACHINE = load_target("rtx3090")
INDEX = np.random.default_rng(0).integers(0, 10**7, 3000)


def access(target: Target = MACHINE) -> FeatureAccess:
    return FeatureAccess(target, CostModel(target).host_only().host)


@pytest.mark.parametrize("row_bytes", [400, 512, 2408])
def test_times_match_the_formulas(row_bytes: int) -> None:
    cost = {placement: access().cost(placement, TableRead(INDEX, row_bytes)) for placement in PLACEMENTS}
    size = 3000 * row_bytes
    assert cost["gather"].time_us == pytest.approx(20 + size / 20.5e3 + 10 + size / 12.3e3)
    assert cost["gather-pageable"].time_us == pytest.approx(20 + size / 20.5e3 + 10 + size / 7e3)
    for placement, shifted in (("zero-copy", True), ("zero-copy-plain", False)):
        counted = HostRows(row_bytes, shifted=shifted).requests(INDEX)
        requests, carried = counted.requests, counted.sectors * 32 + counted.requests * 24
        expected = max(carried * 128 / (128 + 24) / 12.3e3, requests * 1.6 / 256)
        assert cost[placement].requests == requests  # type: ignore[index]
        assert cost[placement].time_us == pytest.approx(10 + expected)  # type: ignore[index]
    assert (
        cost["resident"].time_us
        < cost["zero-copy"].time_us
        <= cost["zero-copy-plain"].time_us
        < cost["gather"].time_us + 1e3
    )


def test_few_outstanding_requests_limit_the_bandwidth() -> None:
    slow = access(override(MACHINE, {"memory.pcie.outstanding_requests": 64}))
    cost = slow.cost("zero-copy", TableRead(INDEX, 512))
    assert cost.time_us == pytest.approx(10 + cost.requests * 1.6 / 64)
    assert cost.time_us > access().cost("zero-copy", TableRead(INDEX, 512)).time_us


def test_rows_of_a_table_beyond_the_translated_addresses_take_a_lookup_each() -> None:
    mapped = access(override(MACHINE, {"memory.pcie.mapped_gib": 1, "memory.pcie.lookup_ns": 50}))
    for table_bytes, row_bytes, waits in ((1 << 30, 128, False), ((1 << 30) + 1, 128, True), (1 << 33, 2048, False)):
        read = TableRead(INDEX, row_bytes, table_bytes=table_bytes)
        time_us, plain_us = mapped.cost("zero-copy", read).time_us, access().cost("zero-copy", read).time_us
        assert time_us == pytest.approx(10 + 3000 * 50e-3 if waits else plain_us)
        assert mapped.cost("gather", read).time_us == access().cost("gather", read).time_us


def test_a_gather_into_new_memory_may_be_slower() -> None:
    slow = access(override(MACHINE, {"memory.host.pageable_gather_gb_per_s": 4.1}))
    read = TableRead(INDEX, 512)
    assert slow.cost("gather", read) == access().cost("gather", read)
    gathered_us = slow.cost("gather-pageable", read).time_parts_us["gather"]
    assert gathered_us == pytest.approx(20 + 3000 * 512 / 4.1e3)


def test_energy_is_that_of_the_transferred_bytes() -> None:
    size = 3000 * 512
    gathered, read = access().cost("gather", TableRead(INDEX, 512)), access().cost("zero-copy", TableRead(INDEX, 512))
    assert gathered.energy_parts_mj["CPU"] == pytest.approx(110 * gathered.time_parts_us["gather"] * 1e-3)
    assert gathered.energy_parts_mj["host DRAM"] == pytest.approx(4 * size * 120e-9)
    assert access().cost("gather-pageable", TableRead(INDEX, 512)).energy_parts_mj["host DRAM"] == pytest.approx(
        6 * size * 120e-9
    )
    assert read.energy_parts_mj["host DRAM"] == pytest.approx(size * 120e-9)
    assert gathered.energy_parts_mj["link"] == pytest.approx(size * 80e-9)
    assert read.energy_parts_mj["link"] == pytest.approx((size + 3000 * 4 * 24) * 80e-9)
    assert read.energy_mj == sum(read.energy_parts_mj.values()) < gathered.energy_mj


def test_placements_that_fit() -> None:
    usable = round(23.25 * 2**30)
    assert set(access().placements(usable, 0).values()) == {None}
    rooms = access().placements(usable, 1)
    assert rooms["resident"] is not None
    assert rooms["resident"].reason == "24.96 GB of features, room for 24.96 GB in the GPU's memory"
    assert rooms["gather"] is rooms["zero-copy"] is None
    crowded = access().placements(10**9, 0, on_host=128 << 30)
    assert crowded["resident"] is None
    assert crowded["gather"] is not None
    message = (
        "features fit nowhere: 200.00 GB of features, room for 24.96 GB in the GPU's memory; 200.00 GB of features, "
        "room for 137.44 GB in the host's memory; choose a larger machine"
    )
    with pytest.raises(TargetError) as caught:
        access().placements(200 * 10**9, 0)
    assert str(caught.value) == message


def test_a_target_without_tiers_is_refused_with_the_missing_keys() -> None:
    with pytest.raises(TargetError, match="target 'pimflow' does not describe its memory tiers"):
        FeatureAccess(load_target("pimflow"), CostModel(load_target("pimflow")).host)
