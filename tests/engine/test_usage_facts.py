"""What a usage record says beside tokens: cold loads, preemptions; and records of older engines,
which still wait in outboxes, as this one reads them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from engine_fakes import Rig, make_config, make_ref, make_request, make_tenant, run
from tenora_engine.events import Event, FinishEvent, UsageRecord
from tenora_engine.memory.adapter_arrivals import AT_ONCE_BYTES
from tenora_engine.transport.outbox import UsageOutbox
from tenora_engine.transport.segment_log import RECORD, SegmentLog

_OF_AN_OLDER_ENGINE = base64.b64decode(
    "3gARqGV2ZW50X2lk2SVjaGF0Y21wbF8wMWs4enE0dDdnMm01bjlyM3Y2eDh5MGFiYzowqnJlcXVlc3RfaWTZI2NoYXRj"
    "bXBsXzAxazh6cTR0N2cybTVuOXIzdjZ4OHkwYWJjpWluZGV4AKZ0ZW5hbnTZIXRlbmFudF8wMWs4enE0dDdnMm01bjly"
    "M3Y2eDh5MGFiZK5hZGFwdGVyX2RpZ2VzdNlHc2hhMjU2OmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJh"
    "YmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWKnY29udGV4dISpdGVuYW50X2lk2SF0ZW5hbnRfMDFrOHpxNHQ3ZzJt"
    "NW45cjN2Nng4eTBhYmSqYXBpX2tleV9pZKVrZXlfMaVtb2RlbKRiYXNlrmZpcnN0X3NlcXVlbmNloTCtcHJvbXB0X3Rv"
    "a2Vuc80DhK1jYWNoZWRfdG9rZW5zzQIArW91dHB1dF90b2tlbnN4qWFycml2YWxfc8tB2khc8BAAAK1maXJzdF90b2tl"
    "bl9zy0HaSFzwIAAAqmZpbmlzaGVkX3PLQdpIXPDAAACocXVldWVfbXPLQCkAAAAAAACvYWRhcHRlcl9sb2FkX21zy0BU"
    "AAAAAAAAqXJlc2lkZW5jeaVzdG9yZaR0aWVyp2RlZmF1bHStZmluaXNoX3JlYXNvbqRzdG9w"
)  # msgpack, as written before there were cold loads and preemptions


def usages(events: list[Event]) -> dict[str, UsageRecord]:
    return {event.request_id: event.usage for event in events if isinstance(event, FinishEvent)}


def test_a_record_of_an_older_engine_is_read(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    log.append([(RECORD, _OF_AN_OLDER_ENGINE)], sync=True)
    log.close()
    outbox = UsageOutbox(tmp_path)
    (record,) = outbox.oldest()
    assert isinstance(record, UsageRecord)
    assert (record.event_id[-2:], record.prompt_tokens, record.residency) == (":0", 900, "store")
    assert (record.preemptions, record.cold_load) == (0, False)
    outbox.close()


@pytest.mark.parametrize("at_once_bytes", [AT_ONCE_BYTES, 0], ids=["in a step", "beside the steps"])
def test_one_load_is_metered_once_whoever_waited_for_it(at_once_bytes: int) -> None:
    rig = Rig.build(make_config(), instant=False, at_once_bytes=at_once_bytes)
    rig.loader.residency = lambda ref: "store"  # type: ignore[method-assign]  # until it is there
    ref = make_ref("cold")
    for name in ("first", "second", "third"):
        tenant = make_tenant(name)
        rig.engine.submit(make_request(name, [1], tenant=tenant, adapter=ref, max_tokens=2))
    run(rig)
    rig.loader.finish(ref.digest)
    found = usages(run(rig))
    for copy in list(rig.adapter_copier.in_flight):
        rig.adapter_copier.finish(copy)
        found |= usages(run(rig))
    assert {usage.residency for usage in found.values()} == {"store"}
    assert sum(usage.cold_load for usage in found.values()) == 1
    rig.engine.submit(make_request("later", [1], adapter=ref, max_tokens=2))
    later = usages(run(rig))["later"]
    assert (later.residency, later.cold_load) == ("device", False)


def test_what_comes_from_host_memory_is_no_cold_load() -> None:
    rig = Rig.build(make_config(max_adapters=1))
    for name in ("a", "b", "a"):
        rig.engine.submit(make_request(name, [1], adapter=make_ref(name), max_tokens=2))
        last = usages(run(rig))[name]
        assert last.cold_load == (last.residency == "store")
    assert (last.residency, last.cold_load) == ("host", False)


def test_a_load_of_which_nobody_waits_any_more_is_metered_to_nobody() -> None:
    rig = Rig.build(make_config(), instant=False)
    ref = make_ref("cold")
    rig.engine.submit(make_request("gone", [1], adapter=ref))
    run(rig)
    rig.loader.finish(ref.digest)
    rig.engine.abort("gone")
    assert not usages(run(rig))["gone"].cold_load
    rig.engine.submit(make_request("next", [1], adapter=ref, max_tokens=2))
    run(rig)
    rig.loader.finish(ref.digest)
    assert not usages(run(rig))["next"].cold_load  # from host memory


def test_preemptions_are_those_of_the_sequence() -> None:
    rig = Rig.build(make_config(num_pages=10, context_tokens=40))
    for name, tpot_ms in (("slack", None), ("urgent", 10.0), ("medium", 50.0)):
        tenant = make_tenant(name, tpot_ms=tpot_ms)
        asked = make_request(name, [5] * 9, tenant=tenant, ignore_eos=True, max_tokens=14)
        rig.engine.submit(asked)
    found = usages(run(rig))
    assert found["slack"].preemptions > 0
    assert found["urgent"].preemptions == 0
    total = sum(usage.preemptions for usage in found.values())
    assert total == rig.engine.stats().counters["preemptions"]
